"""Faults on real API servers: each row of a table (``rows``) is a test, judged by a recorder outside the hub."""
