"""Who may write: the elector, and its Lease."""
