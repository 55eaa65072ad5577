"""Faults on real API servers: a table of rows, each a test (``rows``), judged by a recorder outside the hub."""
