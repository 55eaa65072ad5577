"""Benchmark of the hub with hundreds of remote clusters: ``make bench-scale``."""
