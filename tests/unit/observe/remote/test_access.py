"""Where a cluster's kubeconfig comes from, and the errors if it cannot be read."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from hub.errors import ClusterUnreachable, Forbidden, HubError, KubeconfigError, NotFound
from hub.kube.proxy import no_proxy, parse_proxy
from hub.kube.reflector import RelistSlots
from hub.observe.remote import cluster as module
from hub.observe.remote.access import Connector
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.status import State, state_after
from hub.registry.spec import ClusterSpec, KubeconfigPath, KubeconfigSecret
from hub.runtime.clock import SystemClock

KUBECONFIG = yaml.safe_dump(
    {
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
)
SECRET = ClusterSpec("eu", None, KubeconfigSecret("eu-access"))


def connector(answer: Mapping[str, str] | HubError) -> Connector:
    """A Connector for which every Secret has this content, or fails with this error."""

    async def read(_: str) -> Mapping[str, str]:
        if isinstance(answer, HubError):
            raise answer
        return answer

    reader: Callable[[str], Awaitable[Mapping[str, str]]] = read
    return Connector(SystemClock(), cast("Any", None), read_secret=reader)


async def test_a_secret_gives_access() -> None:
    """The kubeconfig in a Secret is decoded from base64."""
    data = {"kubeconfig": base64.b64encode(KUBECONFIG.encode()).decode()}
    assert (await connector(data).access(SECRET)).server == "https://192.0.2.1:6443"


@pytest.mark.parametrize(
    ("own", "exceptions", "expected"),
    [
        ("", "", "http://env.test:3128"),
        ("", "192.0.2.0/24", "None"),
        ("", "192.0.2.1:443", "http://env.test:3128"),
        ("socks5://own.test", "*", "socks5://own.test:1080"),
    ],
)
async def test_proxy_of_the_environment_is_for_clusters_without_one(own: str, exceptions: str, expected: str) -> None:
    """A kubeconfig's proxy-url comes first, whatever NO_PROXY says; else the environment decides, if it may."""
    document = yaml.safe_load(KUBECONFIG)
    document["clusters"][0]["cluster"]["proxy-url"] = own
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(document).encode()).decode()}
    proxies = no_proxy(parse_proxy("http://x:y@env.test:3128"), exceptions)
    assert str((await replace(connector(data), proxies=proxies).access(SECRET)).proxy) == expected
    assert str((await connector(data).access(SECRET)).proxy) == (expected if own else "None")


async def test_kubeconfig_secret_without_read_secret_is_an_error() -> None:
    """Without ``read_secret``, a kubeconfig in a Secret is an error."""
    with pytest.raises(KubeconfigError, match="Secret default/eu-access of the hub cluster is not read here"):
        await Connector(SystemClock(), cast("Any", None)).access(SECRET)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (NotFound(404), "Secret default/eu-access of the hub cluster does not exist; create it"),
        (Forbidden(403), "the hub's account lacks the rule «secrets eu-access: get»"),
        (
            ClusterUnreachable("https://hub: connection refused"),
            "Secret default/eu-access of the hub cluster cannot be read: https://hub",
        ),
        ({"other": ""}, "has no key 'kubeconfig'"),
        ({"kubeconfig": "a"}, "key 'kubeconfig' is not base64"),
    ],
)
async def test_unreadable_secret_makes_the_cluster_degraded(answer: Mapping[str, str] | HubError, words: str) -> None:
    """If the Secret cannot be read, the cluster is Degraded, so that ``unreachable`` policies do not apply."""
    with pytest.raises(KubeconfigError, match="cluster eu: ") as caught:
        await connector(answer).access(SECRET)
    assert words in str(caught.value)
    assert state_after(caught.value) is State.DEGRADED


async def test_stamp_changes_with_file_and_symlinks(tmp_path: Path) -> None:
    """The stamp changes with the file, with a symlink in its path, and when the file is deleted."""
    spec = ClusterSpec("eu", None, KubeconfigPath(str(tmp_path / "link" / "eu")))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eu").write_text(KUBECONFIG)
    made = connector({})
    (tmp_path / "link").symlink_to("a")
    first = await made.stamp(spec)
    assert await made.stamp(spec) == first
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("b")
    second = await made.stamp(spec)
    (tmp_path / "b" / "eu").unlink()
    assert len({repr(stamp) for stamp in (first, second, await made.stamp(spec))}) == 3


async def test_stamp_of_a_watched_secret_is_its_version() -> None:
    """The stamp of a watched Secret is its version; if it is not watched, None."""
    versions: dict[str, str] = {}
    made = Connector(SystemClock(), cast("Any", None), secret_version=versions.get)
    assert await made.stamp(SECRET) is None
    versions["eu-access"] = "7"
    assert await made.stamp(SECRET) == "7"


async def test_a_mount_that_does_not_answer_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays while it is unknown whether the kubeconfig has changed."""

    class Silent(Connector):
        asked = 0

        async def stamp(self, spec: ClusterSpec) -> object:
            Silent.asked += 1
            raise KubeconfigError("kubeconfig /mnt/eu: does not answer within 10 s")

    monkeypatch.setattr(module, "ACCESS_CHECK", 0.001)
    unit = RemoteCluster(
        SECRET, Silent(SystemClock(), cast("Any", None)), SystemClock(), RelistSlots(), lambda *_: None, lambda: None
    )
    following = asyncio.create_task(unit._replaced(cast("Any", None), (1, 2)))
    async with asyncio.timeout(5):
        while Silent.asked < 3:  # noqa: ASYNC110 - another task's
            await asyncio.sleep(0.001)
    assert not following.done()
    following.cancel()
