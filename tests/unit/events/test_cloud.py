"""Events about Nodes and Services in their own cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hub.controlling.site import Reporter, Subject
from hub.events.cloud import reporter_of
from hub.kube.client import Client
from hub.model import Finding
from tests.support.virtual import LoopClock
from tests.unit.events.test_recorder import Api

VIRTUAL_TIME = True

SERVICE = Subject("Service", "edge", "web", "u1")
NODE = Subject("Node", "", "n1", "u2")


async def sent(subject: Subject, *findings: Finding) -> list[tuple[str, str]]:
    """Reason and component of the Events that findings make."""
    return await _events(lambda reporter: reporter.found(subject, findings))


async def happened(subject: Subject, reason: str) -> list[tuple[str, str]]:
    """Reason and component of the Event that an occurrence makes."""
    return await _events(lambda reporter: reporter.happened(subject, reason, "x"))


async def _events(report: Callable[[Reporter], None]) -> list[tuple[str, str]]:
    api = Api()

    async def client() -> Client:
        return api  # type: ignore[return-value]

    reporter, run = reporter_of(LoopClock(), "hub-0", client, lambda: True, enabled=True)
    task = asyncio.create_task(run())
    report(reporter)
    await asyncio.sleep(60)
    task.cancel()
    return sorted((event["reason"], event["reportingController"]) for event in api.posted())


async def test_reasons_of_the_hub_and_of_a_plugin_are_sent() -> None:
    """A reason that only a cloud's plugin knows makes an Event of its own on a Service."""
    found = await sent(SERVICE, Finding("ForeignLoadBalancer", "x"), Finding("AddressPoolEmpty", "y"))
    assert found == [("AddressPoolEmpty", "service-controller"), ("ForeignLoadBalancer", "service-controller")]


async def test_a_reason_that_the_api_would_refuse_is_not_sent() -> None:
    """A plugin's reason must be a CamelCase name, and concern a Service."""
    assert await sent(SERVICE, Finding("not a reason", "x"), Finding("", "y")) == []
    assert await sent(NODE, Finding("AddressPoolEmpty", "x")) == []


@pytest.mark.parametrize(
    ("subject", "reason", "component"),
    [
        (NODE, "Synced", "cloud-node-controller"),
        (NODE, "DeletingNode", "cloud-node-lifecycle-controller"),
        (NODE, "DeletingNodeFailed", "cloud-node-lifecycle-controller"),
        (SERVICE, "EnsuringLoadBalancer", "service-controller"),
        (SERVICE, "DeletedLoadBalancer", "service-controller"),
    ],
)
async def test_components_are_those_of_kubernetes(subject: Subject, reason: str, component: str) -> None:
    """Alerts and habits that know k8s.io/cloud-provider's Events keep working."""
    assert await happened(subject, reason) == [(reason, component)]


@pytest.mark.parametrize(
    ("reason", "component"),
    [
        ("NodeAddressMismatch", "cloud-node-controller"),
        ("NodeDeletionWithheld", "cloud-node-lifecycle-controller"),
        ("WrongAccount", "cloud-node-lifecycle-controller"),
    ],
)
async def test_findings_about_nodes_have_the_component_of_their_part(reason: str, component: str) -> None:
    """What is new comes from the component that Kubernetes has for the same work."""
    assert await sent(NODE, Finding(reason, "x")) == [(reason, component)]
