"""Decides which process may write: electors, their Leases, and shards."""

from typing import Final

MOST_SHARDS: Final = 64
"""Each costs every replica a watch and a request every few seconds."""
