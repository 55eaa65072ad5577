"""The hub cluster: what is watched in it, and what is kept in it."""
