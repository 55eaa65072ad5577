"""Faults on purpose, sharing no code with the hub.

``proxy`` breaks connections, ``recorder`` sees what becomes of the slices, ``judge`` says whether that was right.
"""
