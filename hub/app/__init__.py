"""Puts the parts of the hub together and runs them."""
