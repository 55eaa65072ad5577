"""Runs providers: the catalog of installed plugins, their event loops, their calls and their answers."""
