"""Building blocks that know nothing of Kubernetes: clock, supervision, keyed queue, backoff, bounded files."""
