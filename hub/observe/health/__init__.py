"""Health checks: sends the probes and keeps the verdicts. Independent of slices and of Kubernetes."""
