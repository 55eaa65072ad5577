"""Providers at work: the catalog of installed plugins and the memory of what they answered."""
