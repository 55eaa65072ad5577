"""Tests; a package so that ``tests.support`` cannot be taken for somebody else's."""
