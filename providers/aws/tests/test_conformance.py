"""The rules of the capability ``addresses``, on the fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import hub_provider_aws
from hub_provider_aws.testing import ACCESS_KEY, REGION, SECRET_KEY, FakeAws
from hub_testkit.addresses.conformance import AddressProviderConformance
from hub_testkit.addresses.fake import Ability, Request, World
from hub_testkit.contexts import LocalHub


class _KitFake:
    """The fake, as the kit uses it."""

    cannot: Mapping[Ability, str] = {
        "operations": "all calls of EC2 are synchronous",
        "restore": "EC2 cannot give an auto-assigned address back",
    }

    def __init__(self, aws: FakeAws) -> None:
        self.aws = aws
        self.running = 0
        self.reserve = aws.reserve
        self.add_instance = aws.add_instance
        self.hold = aws.hold
        self.hold_elsewhere = aws.hold_elsewhere
        self.occupy = aws.occupy
        self.holder_of = aws.holder_of
        self.extras_of = aws.extras_of
        self.heal = aws.heal
        self.fail = aws.fail

    @property
    def requests(self) -> Sequence[Request]:
        return [Request(*served) for served in self.aws.requests]

    @property
    def changes(self) -> int:
        return self.aws.changes

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        raise NotImplementedError(self.cannot["operations"])


class TestAws(AddressProviderConformance):
    """Every rule on a fake of its own."""

    plugin = hub_provider_aws
    name = "aws"
    foreign_ids = (
        "aws:///eu-west-2a/i-0123456789abcdef0",
        "aws:///eu-west-1a/fargate-ip-10-0-0-1.eu-west-1.compute.internal",
        "gce://project/eu-west-1a/i-0123456789abcdef0",
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/n1",
    )

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        """Serves a fake whose key pair is read from two secrets."""
        with FakeAws() as aws:
            pair = {"accessKeyId": {"env": "ID"}, "secretAccessKey": {"env": "SECRET"}}
            hub = LocalHub(secrets={"ID": ACCESS_KEY, "SECRET": SECRET_KEY}, allow_api_hosts=frozenset({"127.0.0.1"}))
            config = {"region": REGION, "endpoint": aws.url, "credentials": pair}
            yield World(_KitFake(aws), config, hub, (ACCESS_KEY, SECRET_KEY))
