"""Pure: what the slices of a target should say, given snapshots and what is observed."""
