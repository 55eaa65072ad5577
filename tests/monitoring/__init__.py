"""What monitoring/ brings: alerts, runbooks, the dashboard."""
