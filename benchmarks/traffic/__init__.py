"""Proves with real requests what the hub's consumers lose when something fails: ``make traffic``."""
