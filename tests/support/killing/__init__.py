"""Kills hub processes at exact steps of a move, and judges what they did from the logs of cloud and API server."""
