"""Endpoint views: (service, service-port, endpoint) objects for whoever routes traffic himself.

Read only, and beside the rest of the hub: nothing here decides what is published. Where no registry asks for
views, nothing in here is imported.
"""
