"""Contract tests of API servers: every test runs against a real kube-apiserver and the simulator."""
