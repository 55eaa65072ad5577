"""The whole hub against a model: hub, API servers and cloud run in one event loop with virtual time."""
