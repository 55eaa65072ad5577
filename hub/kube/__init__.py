"""Talking to Kubernetes API servers: credentials, transport, decoding, reflectors. Knows no business."""
