"""Tests of the alerts, the runbooks and the dashboard."""
