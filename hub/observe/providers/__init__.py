"""Providers at work: the catalog of installed plugins, their loops, and what they answered."""
