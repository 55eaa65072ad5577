"""Composition: the running hub."""
