"""What should be published: pure functions from snapshots to endpoints per source cluster and family.

    nodes + resolutions ─▶ eligibility, addresses ─▶ view (one per source) ─▶ target (one per Service)

Nothing in here does I/O, knows the time or writes: what depends on time takes it as an argument and says
when it wants to be asked again.
"""
