"""Everything that decides what a target publishes: pure functions of snapshots.

    nodes + resolutions ─▶ eligibility, addresses ─▶ view (one per source) ─▶ target (one per Service)
    ─▶ guard ─▶ adopt ─▶ plan (which slices to write)

Nothing in here does I/O, knows the time or writes: what depends on time takes it as an argument and says
when it wants to be asked again.
"""
