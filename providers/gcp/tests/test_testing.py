"""The fake as a program."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import yaml
from hub_provider_gcp import GcpConfig, open_account
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin.addresses import Free


async def test_program_prints_an_account_and_its_requests(tmp_path: Path) -> None:
    """``python -m hub_provider_gcp.testing`` prints an account that works, and each request that it served."""
    key = tmp_path / "key.json"
    command = [sys.executable, "-m", "hub_provider_gcp.testing", str(key), "--instances", "1", "--addresses", "1"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30.0):
            head = b"".join([await process.stdout.readline() for _ in range(5)]).decode()
            account = yaml.safe_load(head)
            config = GcpConfig.model_validate(account["config"])
            host = re.findall(r"--allow-api-host (\S+)", head)
            hub = LocalHub(secrets={"key.json": key.read_text()}, allow_api_hosts=frozenset(host))
            async with hub, open_account(LocalAccount(hub), config) as provider:
                found = await provider.describe(account["addresses"])
            assert list(found.values()) == [Free("us-west1")]
            lines = [(await process.stdout.readline()).decode() for _ in range(3)]
        assert lines[:2] == ["200 GET /subject\n", "200 POST /token\n"]
        assert lines[2].startswith("200 GET /compute/v1/projects/team-project/regions/us-west1/addresses?")
        assert key.stat().st_mode & 0o077 == 0
    finally:
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
