"""Learning the hub cluster's Service CIDRs, or going on without."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from hub.aio.clock import SystemClock
from hub.errors import ClusterUnreachable, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.remote.cidrs import ServiceCidrs
from tests.support import build

ANSWER = (
    b'{"items": [{"spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]}}, {"spec": {"cidrs": ["10.97.0.0/16"]}}]}'
)


class Api:
    """Gives one answer after the other."""

    def __init__(self, *answers: bytes | HubError) -> None:
        self.answers = list(answers)

    async def request(self, *_: Any, **__: Any) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, HubError):
            raise answer
        return answer


def learner(*answers: bytes | HubError) -> tuple[ServiceCidrs, list[str]]:
    """With the changes it reports."""
    changes: list[str] = []
    return ServiceCidrs(cast("Client", Api(*answers)), SystemClock(), lambda: changes.append("changed")), changes


async def test_all_objects_count_together() -> None:
    """Both families, reported once."""
    cidrs, changes = learner(ANSWER, ANSWER)
    await cidrs.look()
    await cidrs.look()
    assert cidrs.networks == build.networks("10.96.0.0/16", "10.97.0.0/16", "fd00:10:96::/112")
    assert (changes, cidrs.asked.is_set()) == (["changed"], True)


@pytest.mark.parametrize("error", [Forbidden(403), NotFound(404)])
async def test_without_the_api_or_the_right_the_hub_goes_on(error: HubError, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, and nobody waits."""
    caplog.set_level(logging.INFO)
    cidrs, changes = learner(error, error)
    assert await cidrs.look()
    assert await cidrs.look()
    assert (cidrs.networks, changes, cidrs.asked.is_set(), len(caplog.records)) == ((), [], True, 1)


@pytest.mark.parametrize("answer", [ClusterUnreachable("gone"), b"garbage", b'{"items": [{"spec": {"cidrs": ["x"]}}]}'])
async def test_no_answer_keeps_what_is_known(answer: bytes | HubError) -> None:
    """Unknown is not empty."""
    cidrs, _ = learner(ANSWER, answer)
    await cidrs.look()
    known = cidrs.networks
    assert await cidrs.look() is False
    assert cidrs.networks == known
