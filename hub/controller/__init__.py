"""All decisions of the cloud controller, as pure functions of what is known (:mod:`hub.controlling` writes)."""
