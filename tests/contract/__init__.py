"""Behaviour a fake shares with the real thing: every test here runs against both."""
