"""The hub cluster: the objects that the hub watches there, and those that it stores there."""
