"""The modules behind :class:`hub_testkit.SimulatedCluster`. None of them is public.

The answers were measured on a real kube-apiserver 1.35, and ``tests/contract`` compares them with one.
These modules must not import the hub's Kubernetes client: a fake that shares code with its subject proves nothing.
"""
