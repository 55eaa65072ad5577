"""From wanted endpoints to writes: the guard, packing into slices, the plan. Pure functions.

The guard decides what may go, on sets of endpoints; packing decides which slice an endpoint sits in; the
plan adds everything else a slice carries and names the writes. Nothing in here does I/O or knows the time.
"""
