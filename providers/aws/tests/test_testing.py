"""Tests of the fake as a program, and of what it corrects in moto."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hub_provider_aws import AwsConfig, open_account
from hub_provider_aws.testing import ACCESS_KEY, SECRET_KEY
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin import Node
from hub.plugin.addresses import Free, Order


async def test_the_program_serves_and_prints_requests() -> None:
    """``python -m hub_provider_aws.testing`` serves an account with nodes, prints each request, and ends on SIGTERM."""
    command = [sys.executable, "-m", "hub_provider_aws.testing"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:  # noqa: ASYNC220
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(6)]
        url = lines[0].split()[-1]
        address = lines[2].split()[-1]
        provider_id = lines[3].split()[-1]
        secrets = {"ID": ACCESS_KEY, "SECRET": SECRET_KEY}
        pair: dict[str, Any] = {"accessKeyId": {"env": "ID"}, "secretAccessKey": {"env": "SECRET"}}
        config = AwsConfig.model_validate({"region": "eu-west-1", "endpoint": url, "credentials": pair})
        async with (
            LocalHub(secrets=secrets, allow_api_hosts=frozenset({"127.0.0.1"})) as hub,
            open_account(LocalAccount(hub), config, None) as provider,
        ):
            instance = provider.instance_of(Node("node-1", provider_id=provider_id))
            assert instance is not None
            await provider.attach(Order(address, instance, Free("eu-west-1")))
        program.terminate()
        out, err = program.communicate(timeout=10)

    assert [line.split()[:2] for line in out.splitlines()] == [
        ["200", "DescribeAddresses"],
        ["200", "DescribeInstances"],
        ["200", "AssociateAddress"],
    ]
    assert (program.returncode, err) == (0, "")
