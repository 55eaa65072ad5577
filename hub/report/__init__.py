"""Reports the hub's state: snapshots, the status page and its API, explanations, metrics and probes."""
