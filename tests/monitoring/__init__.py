"""The alerts, the runbooks and the dashboard."""
