"""Tests in their own network namespace, with 65,000 addresses to probe and no connection to the outside.

The hub refuses loopback addresses as endpoints, and has no switch to allow them. In the test's namespace, 10.7.0.0/16
is local. Root is not needed if the kernel allows user namespaces.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

INSIDE = "HUB_TESTS_INSIDE_NAMESPACE"
SETUP = "ip link set lo up && ip route add local 10.7.0.0/16 dev lo"
COMMAND = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", f'{SETUP} && exec "$@"', "sh")
"""A prefix for commands that runs them inside a new namespace."""
SECONDS = 120.0

Test = Callable[..., Awaitable[None]]


def unavailable() -> str:
    """Why namespaces are unavailable; "" if they are available."""
    missing = [name for name in ("unshare", "ip") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    tried = subprocess.run([*COMMAND, "true"], capture_output=True, text=True, timeout=20, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip()[:200] or "refused"


def in_namespace(test: Test) -> Test:
    """Run an async test in its own process and namespace. Without namespaces the test is skipped, or fails in CI."""

    @functools.wraps(test)
    async def wrapper(*args: Any, **kwargs: Any) -> None:
        if os.environ.get(INSIDE):
            await test(*args, **kwargs)
            return
        if why := unavailable():
            if os.environ.get("CI"):
                pytest.fail(f"CI has no network namespaces to test in: {why}", pytrace=False)
            pytest.skip(f"NO NETWORK NAMESPACE, NOT TESTED: {why}")
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        argv = [*COMMAND, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", name]
        environment = {**os.environ, INSIDE: "1"}
        root = Path(__file__).parents[2]
        done = subprocess.run(  # noqa: ASYNC221 - this loop has nothing else to do
            argv, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment, cwd=root
        )
        if done.returncode != 0:
            pytest.fail(f"inside the namespace:\n{done.stdout}\n{done.stderr}", pytrace=False)

    assert inspect.iscoroutinefunction(test)
    return wrapper
