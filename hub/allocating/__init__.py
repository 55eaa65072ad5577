"""Carries out the decisions of :mod:`hub.allocations`: observes, asks clouds, writes records, acts."""
