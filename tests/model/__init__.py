"""The whole hub against a model of its own: hub, API servers and cloud in one event loop with virtual time."""
