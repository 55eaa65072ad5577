"""``hub cluster``: the hub's account in a remote cluster, and what the hub cluster needs to use it."""
