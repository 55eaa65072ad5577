"""Health checks: what to probe, how, and what the answers amount to. Knows neither targets' slices nor Kubernetes."""
