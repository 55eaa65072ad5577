"""The cloud controller without a hub: what it says where a hub would wait for an approval."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub.app.controller import CloudController, ControllerOptions, WithoutApprovals
from hub.controller.course import Rest, ensure
from hub.controlling.site import Subject
from hub.kube.client import Client
from hub.kube.resolver import LookupPool
from hub.model import Finding
from hub.registry.spec import CloudSpec, ProviderRef
from hub.runtime.clock import SystemClock
from tests.unit.controller.test_course import ADDRESS, NOTHING, READY, memory, scene
from tests.unit.controller.test_services import Guard, use
from tests.unit.controlling.test_nodes import World, play


class Heard:
    """A reporter that keeps the last message of each reason."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}

    def found(self, subject: Subject, findings: Sequence[Finding]) -> None:
        """See Reporter."""
        self.messages |= {finding.reason: f"{subject.name}: {finding.message}" for finding in findings}

    def happened(self, subject: Subject, reason: str, message: str) -> None:
        """See Reporter."""
        self.messages[reason] = f"{subject.name}: {message}"

    def ended(self, subject: Subject) -> None:
        """See Reporter."""
        self.messages["ended"] = subject.name


@contextmanager
def controller(**options: Any) -> Iterator[CloudController]:
    """A controller that does not run."""
    with closing(LookupPool()) as pool:
        yield CloudController(
            ControllerOptions("eu", CloudSpec(ProviderRef("toy"), "eu"), **options), SystemClock(), pool
        )


def said(finding: Finding | None) -> str:
    """What is said about a finding of Service edge/web."""
    assert finding is not None
    assert "; hub approve cloud/eu " in finding.message
    heard = Heard()
    WithoutApprovals(heard).found(Subject("Service", "edge", "web", "u"), [finding])
    return heard.messages[finding.reason]


@pytest.mark.parametrize(
    ("gone", "reason", "end"),
    [
        (2, "NodeDeletionWithheld", "may go; if its machine is gone for good, delete the Node: kubectl delete node {}"),
        (4, "WrongAccount", "is it the right account? If it is, delete the Node: kubectl delete node {}"),
    ],
)
def test_a_withheld_node_is_deleted_with_kubectl(gone: int, reason: str, end: str) -> None:
    """No message names an approval, which the controller could not read."""
    heard, names = Heard(), ("n1", "n2", "n3", "n4")

    async def story(world: World) -> None:
        await asyncio.sleep(1)
        for name in names[:gone]:
            del world.cloud.machines[name]
            world.api.ready(name, "False")
        await asyncio.sleep(200)
        assert world.names() == list(names)

    play(story, *names, before=lambda world: setattr(world.site, "reporter", WithoutApprovals(heard)))
    name, _, text = heard.messages[reason].partition(": ")
    assert text.endswith(end.format(name))
    assert "hub approve" not in str(heard.messages)


def test_a_balancer_of_another_controller_is_replaced_when_the_ingress_is_removed() -> None:
    """The Event on the Service has the command; a Service without an ingress gets a balancer."""
    withheld = ensure(scene(READY, NOTHING, (ADDRESS,)), memory())
    assert isinstance(withheld, Rest)
    assert said(withheld.finding).endswith(
        "or clusterName is wrong; if no other controller has one and --cluster-name is right, this permits a new one: "
        "kubectl patch service web -n edge "
        '--subresource=status --type=merge -p \'{"status":{"loadBalancer":null}}\''
    )


def test_nodes_that_stay_in_balancers_leave_with_time() -> None:
    """There is nothing to do but wait."""
    guard = Guard("eu")
    use(guard, 0, 1, 2, 3)
    use(guard, 10, 3)
    assert said(guard.finding()).endswith("n1, n2; they stay until that has lasted 300 s")


@pytest.mark.parametrize(
    ("server", "expected"), [("", "https://1.2.3.4:6443"), ("https://api.test/", "https://api.test")]
)
def test_master_overrides_the_address_of_the_kubeconfig(tmp_path: Path, server: str, expected: str) -> None:
    """Everything else stays as the kubeconfig says."""
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": "https://1.2.3.4:6443"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    with controller(kubeconfig=str(tmp_path / "kubeconfig"), server=server) as made:
        assert made.access().server == expected


def test_the_events_of_a_cloud_controller_name_no_approval() -> None:
    """Its reporter is of this kind; the client is only used to send."""

    async def client() -> Client:
        raise NotImplementedError

    with controller() as made:
        reporter, _ = made.reporting("eu", client, lambda: True)
        assert isinstance(reporter, WithoutApprovals)


def test_everything_else_is_said_as_it_is() -> None:
    """Other findings, occurrences and ends."""
    heard, subject = Heard(), Subject("Service", "edge", "web", "u")
    reporter = WithoutApprovals(heard)
    reporter.found(subject, [Finding("Contended", "stop that one")])
    reporter.happened(subject, "EnsuredLoadBalancer", "done")
    reporter.ended(subject)
    assert heard.messages == {"Contended": "web: stop that one", "EnsuredLoadBalancer": "web: done", "ended": "web"}
