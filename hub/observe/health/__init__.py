"""Health checks: what to probe, how, and the verdicts. Independent of slices and of Kubernetes."""
