"""Benchmarks of the hub, next to a client-go controller and a minimal client; see docs/performance.md."""
