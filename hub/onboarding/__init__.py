"""``hub cluster``: creates and removes the hub's account in a remote cluster, its Secret and its registry entry."""
