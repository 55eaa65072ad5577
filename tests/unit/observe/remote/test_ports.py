"""Ports that are read from a Service of a source cluster, and what is known while it cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from hub.decide.ports import NOT_READ, PortReading
from hub.errors import ClusterUnreachable
from hub.model import Service, ServicePort, TargetKey
from hub.observe.remote.ports import RemoteService
from hub.observe.remote.reading import ClusterReader
from tests.support import build
from tests.support.clocks import HastyClock

KEY = TargetKey("edge", "payments")
PORTS = (ServicePort(443, "https", node_port=30443), ServicePort(80, "", node_port=30080), ServicePort(81, "raw"))


class Reader:
    """A reader of a cluster that reports these states one after the other, and then waits."""

    def __init__(self, *states: Service | Exception | None) -> None:
        self.states = list(states)

    async def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        assert (namespace, name) == KEY
        while self.states:
            state = self.states.pop(0)
            if isinstance(state, Exception):
                raise state
            yield state
        await asyncio.Event().wait()


async def followed(*states: Service | Exception | None) -> tuple[RemoteService, list[str]]:
    """A RemoteService after these states, and its problem at each change."""
    reader, problems = Reader(*states), list[str]()

    def changed() -> None:
        problems.append(found.problem)

    found = RemoteService("eu", KEY, cast("ClusterReader", reader), HastyClock(), changed)
    task = asyncio.create_task(found.run())
    if states:
        await found.settled()
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return found, problems


@pytest.mark.parametrize(
    ("port", "reading"),
    [
        ("https", PortReading(30443)),
        (443, PortReading(30443)),
        (80, PortReading(30080)),
        ("raw", PortReading(None, "it has no nodePort (the Service is of type ClusterIP)")),
        ("none", PortReading(None, "the Service has no such port; its ports: https, 80, raw")),
        (30443, PortReading(None, "the Service has no such port; its ports: https, 80, raw")),
    ],
)
async def test_node_port_is_found_by_name_or_number(port: int | str, reading: PortReading) -> None:
    """A port is given by its name or its number; the text says why there is no nodePort."""
    found, _ = await followed(build.service(ports=PORTS, kind="ClusterIP"))
    assert found.node_port(port) == reading


async def test_service_without_ports_has_none() -> None:
    """The text for a Service without any port says so."""
    found, _ = await followed(build.service(ports=()))
    assert found.node_port(1) == PortReading(None, "the Service has no such port; its ports: none")


async def test_ports_are_unknown_before_the_first_read() -> None:
    """Before the first read, both ports are unknown, and nothing has changed."""
    found, problems = await followed()
    assert found.node_port(443) == found.health_check_node_port() == PortReading(None, NOT_READ.problem)
    assert problems == []


async def test_health_check_port_outlasts_its_service() -> None:
    """The last known healthCheckNodePort counts while the Service does not exist or cannot be read."""
    service = build.service(ports=PORTS, health_check_node_port=32000)
    for states, reading in (
        ((service,), PortReading(32000)),
        ((service, None), PortReading(32000, "it does not exist in cluster eu")),
        ((service, ClusterUnreachable("gone")), PortReading(32000)),
        ((None, ClusterUnreachable("gone")), PortReading(None, "gone")),
        (
            (service, build.service(ports=PORTS)),
            PortReading(None, "it has no healthCheckNodePort (externalTrafficPolicy: Local gives it one)"),
        ),
        ((service, build.service(ports=PORTS), None), PortReading(None, "it does not exist in cluster eu")),
    ):
        found, _ = await followed(*states)
        assert found.health_check_node_port() == reading


async def test_each_change_is_reported_and_each_problem_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Equal states change nothing; a Service that cannot be read stays known, with the problem."""
    service, gone = build.service(ports=PORTS), ClusterUnreachable("gone")
    found, problems = await followed(service, service, gone, gone, service, None, None, gone)
    assert problems == ["", "gone", "", "it does not exist in cluster eu", "gone"]
    assert (found.service, found.problem) == (None, "gone")
    text = "cluster eu: Service edge/payments: {}; ports read from it are kept"
    assert caplog.messages == [text.format(problem) for problem in ("gone", "it does not exist in cluster eu", "gone")]
