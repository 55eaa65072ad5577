"""What clouds' APIs state and are asked to change: plain frozen values, between decisions and plugins."""
