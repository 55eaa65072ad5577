"""Real API servers for tests: ``server`` to start one by hand, ``fleet`` behind the fixtures."""
