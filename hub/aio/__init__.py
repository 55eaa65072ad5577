"""asyncio building blocks that know no business: clock, supervision, keyed queue, backoff."""
