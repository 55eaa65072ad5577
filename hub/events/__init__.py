"""Kubernetes Events: which reasons exist, how often each is sent, and the requests that send them."""
