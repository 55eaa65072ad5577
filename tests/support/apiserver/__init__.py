"""Real API servers for tests: ``server`` has one server, ``fleet`` the servers of the fixtures."""
