"""Decides which process may write: leader election, its Leases, and shards."""

from typing import Final

MOST_SHARDS: Final = 64
"""Upper limit of ``--shards``: each shard costs every replica a watch and a request every few seconds."""
