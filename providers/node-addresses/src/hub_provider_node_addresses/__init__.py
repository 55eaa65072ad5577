"""Addresses from the Node object itself."""
