"""Collects what the hub knows: remote clusters, answers of providers, health checks, and the hub cluster."""
