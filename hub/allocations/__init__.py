"""All decisions about reserved addresses, as pure functions of values."""
