"""A fake EC2 API and an opened account for each test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING

import pytest
from hub_provider_aws import AwsConfig, open_account
from hub_provider_aws.testing import ACCESS_KEY, REGION, SECRET_KEY, FakeAws
from hub_testkit.contexts import LocalAccount, LocalHub

if TYPE_CHECKING:
    from hub_provider_aws.provider import ElasticIps


@pytest.fixture
def aws() -> Generator[FakeAws, None, None]:
    """A fake EC2 API without instances and addresses."""
    with FakeAws() as fake:
        yield fake


@pytest.fixture
def config(aws: FakeAws) -> AwsConfig:
    """The configuration of the fake's account."""
    pair = {"accessKeyId": {"env": "ID"}, "secretAccessKey": {"env": "SECRET"}}
    return AwsConfig.model_validate({"region": REGION, "endpoint": aws.url, "credentials": pair})


@pytest.fixture
async def hub() -> AsyncGenerator[LocalHub, None]:
    """A hub with the fake's key pair."""
    secrets = {"ID": ACCESS_KEY, "SECRET": SECRET_KEY}
    async with LocalHub(secrets=secrets, allow_api_hosts=frozenset({"127.0.0.1"})) as local:
        yield local


@pytest.fixture
async def provider(hub: LocalHub, config: AwsConfig) -> AsyncGenerator[ElasticIps, None]:
    """An opened account of the fake."""
    async with open_account(LocalAccount(hub, name="aws-prod"), config, None) as opened:
        yield opened
