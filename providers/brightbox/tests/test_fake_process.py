"""``python -m hub_provider_brightbox.testing``."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from hub_provider_brightbox.testing import CLIENT, SECRET

COMMAND = [sys.executable, "-m", "hub_provider_brightbox.testing", "--port", "0", "--servers", "2"]


@pytest.fixture
def fake() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, url = process.stdout.readline().split()
        assert word == "url:"
        yield url, process
        process.terminate()
        process.stdout.read()


def call(method: str, url: str, body: Any = None, token: str = "") -> Any:
    """The answer of a request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def login(url: str) -> str:
    """A token, as Go's OAuth library asks for it."""
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    manager.add_password(None, url, CLIENT, SECRET, is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    with opener.open(f"{url}/token/", b"grant_type=client_credentials&scope=infrastructure+orbit", 10) as answer:
        return str(json.loads(answer.read())["access_token"])


def test_the_fake_is_a_process_with_a_control(fake: tuple[str, subprocess.Popen[str]]) -> None:
    """The first line has the address; servers, faults and the state are reached without a token, and are not logged."""
    url, process = fake
    token = login(url)
    assert [each["id"] for each in call("GET", f"{url}/1.0/accounts", token=token)] == ["acc-00001"]
    first = call("GET", f"{url}/1.0/servers", token=token)[0]["id"]
    [added] = call("POST", f"{url}/fake/servers", {"count": 1})
    call("DELETE", f"{url}/fake/servers/{first}")
    assert [each["id"] for each in call("GET", f"{url}/1.0/servers", token=token)][1:] == [added]
    call("POST", f"{url}/fake/set", {"reverse_dns": True, "latency": 0.0})
    call("POST", f"{url}/fake/fail", {"fault": "error", "method": "POST"})
    with pytest.raises(urllib.error.HTTPError, match="503"):
        call("POST", f"{url}/1.0/cloud_ips", {"name": "x"}, token)
    made = call("POST", f"{url}/1.0/cloud_ips", {"name": "x"}, token)
    assert made["reverse_dns"] == f"{made['id']}.reverse.test"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        call("POST", f"{url}/fake/set", {"nothing": 1})
    state = call("GET", f"{url}/fake/state")
    assert list(state["objects"]["cloud_ips"]) == [made["id"]]
    paths = [(row["method"], row["path"]) for row in state["log"]]
    assert paths == [
        ("POST", "/token/"),
        ("GET", "/1.0/accounts"),
        ("GET", "/1.0/servers"),
        ("GET", "/1.0/servers"),
        ("POST", "/1.0/cloud_ips"),
        ("POST", "/1.0/cloud_ips"),
    ]
    process.terminate()
    assert process.stdout is not None
    assert '201 POST /1.0/cloud_ips {"name": "x"}' in process.stdout.read()
