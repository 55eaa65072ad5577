"""The rooms behind :class:`hub_testkit.SimulatedCluster`; nothing in here is public by itself.

What a room answers was first seen on a real kube-apiserver 1.35 and is held to it by ``tests/contract``.
It must not import the hub's own Kubernetes client: a fake that shares code with what it tests proves nothing.
"""
