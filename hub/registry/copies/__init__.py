"""Copies that Services ask for by annotation."""
