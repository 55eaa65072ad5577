"""Endpoint views: (service, service-port, endpoint) objects for gateways and proxies outside Kubernetes.

Views are read only and have no effect on published slices. This package is imported only if the registry has ``views``.
"""
