"""Tests of the capability ``cloud``: what the author of a cloud's plugin inherits and implements."""
