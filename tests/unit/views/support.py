"""Builders for the tests of endpoint views: a board with given content."""

from __future__ import annotations

import asyncio

from hub.model import Endpoint, ObjectKey, Port, Service, ServicePort, Slice
from hub.views.board import ALL, Board, Content

PORT = ServicePort(80, "http", target_port=8080)


class World:
    """A board of clusters whose content the test sets; all Services have views."""

    def __init__(self, *clusters: str) -> None:
        self.board = Board(lambda _, __: True)
        for name in clusters or ("local",):
            content = self.content(name)
            content.services[ALL].replace({}, "1")
            content.slices[ALL].replace({}, "1")

    def content(self, cluster: str = "local") -> Content:
        """The content of a cluster."""
        return self.board.cluster(cluster)

    def put(self, name: str, *addresses: str, cluster: str = "local", ports: tuple[ServicePort, ...] = (PORT,)) -> None:
        """Add or replace a Service with one slice."""
        content, key = self.content(cluster), ObjectKey("edge", name)
        content.services[ALL].upsert(key, Service("edge", name, ports=ports), "2")
        slice_ports = tuple(Port(port.name, 8080) for port in ports)
        labels = {"kubernetes.io/service-name": name}
        endpoints = tuple(Endpoint((address,)) for address in addresses)
        content.slices[ALL].upsert(key, Slice("edge", name, "IPv4", endpoints, slice_ports, labels), "2")

    def drop(self, name: str, cluster: str = "local") -> None:
        """Delete a Service but not its slice, which the API server deletes later."""
        content, key = self.content(cluster), ObjectKey("edge", name)
        content.services[ALL].delete(key, content.services[ALL].by_key[key], "3")

    async def settle(self) -> None:
        """Wait until all views are up to date."""
        while not self.board.idle:  # noqa: ASYNC110 - it goes on by itself
            await asyncio.sleep(0)
