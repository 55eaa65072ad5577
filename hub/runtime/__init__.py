"""Building blocks that do not depend on Kubernetes, such as the clock, supervised tasks, keyed queue and backoff."""
