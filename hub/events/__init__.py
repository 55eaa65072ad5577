"""Kubernetes Events: what there is to be said of, how often, and the requests that say it."""
