"""What a hub says about itself: one snapshot of everything, the status page and its API, metrics."""
