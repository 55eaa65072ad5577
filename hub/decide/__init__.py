"""Decide what each target publishes: pure functions of snapshots.

    nodes + resolutions ─▶ eligibility, addresses ─▶ view (one per source) ─▶ target (one per Service)
    ─▶ guard ─▶ adopt ─▶ plan (which slices to write)

Nothing in this package does I/O or reads a clock. A function that depends on time takes the time as an argument, and
returns when it must be called again.
"""
