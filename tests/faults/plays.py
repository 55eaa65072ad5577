"""The faults of the rows, as plays: a play is a context manager that breaks something while its block runs."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.faults.stage import CONTROL, Site
from tests.support.faults.proxy import EVERYTHING, Door, Fault, Kind, Where, where

Play = Callable[[Site], contextlib.AbstractContextManager[None]]

STATUS: Final = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}}
GONE: Final = (
    json.dumps({"type": "ERROR", "object": {**STATUS, "code": 410, "reason": "Expired", "message": "too old"}}) + "\n"
).encode()
NODE_WATCH: Final = where("watch", resource="nodes")
SLICE_WATCH: Final = where("watch", resource="endpointslices")


def remote_fault(
    kind: Kind, concerned: Where, amount: float = 0.0, body: bytes = b"", first: tuple[Fault, ...] = ()
) -> Play:
    """Injects a fault between the hub and the row's cluster, after the faults in ``first``."""
    faults = (*first, Fault(kind, concerned, amount, body))

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        assert site.proxy is not None
        with site.proxy.broken(*faults):
            yield

    return play


@contextlib.contextmanager
def missed_recovery(site: Site) -> Iterator[None]:
    """A node stops being Ready; then no data arrives, so that the hub misses its recovery until after its grace."""
    assert site.proxy is not None
    name = next(reversed(site.nodes))  # the row itself removes the oldest node
    site.set_ready(name, "False")
    time.sleep(2.0)  # so that the hub hears of it
    with site.proxy.broken(Fault(Kind.BLACKHOLE, EVERYTHING)):
        site.set_ready(name, "True")
        yield


def relist_fault(kind: Kind, concerned: Where, amount: float = 0.0) -> Play:
    """Expires the watch, and injects a fault into the list that follows."""
    return remote_fault(kind, concerned, amount, first=(Fault(Kind.INSERT, NODE_WATCH, body=GONE, times=1),))


def answer_all_with(body: bytes) -> Play:
    """Breaks the watch, and answers all following requests with this body."""
    return remote_fault(Kind.ANSWER, EVERYTHING, body=body, first=(Fault(Kind.RESET, NODE_WATCH, times=1),))


def door(state: Door) -> Play:
    """Closes the connections to the row's cluster, and changes the treatment of new ones."""

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        assert site.proxy is not None
        site.proxy.door(state)
        site.proxy.reset()
        try:
            yield
        finally:
            site.proxy.heal()

    return play


def hub_fault(
    kind: Kind, concerned: Where, amount: float = 0.0, body: bytes = b"", first: tuple[Fault, ...] = ()
) -> Play:
    """Injects a fault between the hub and its own API server, after the faults in ``first``."""
    faults = (*first, Fault(kind, concerned, amount, body))

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        assert site.lane.proxy is not None
        with site.lane.proxy.broken(*faults):
            yield

    return play


def write_fault(kind: Kind, amount: float = 0.0, body: bytes = b"") -> Play:
    """Injects a fault into the hub's writes of the row's slices, whose names begin with its Service's."""

    def play(site: Site) -> contextlib.AbstractContextManager[None]:
        return hub_fault(kind, where("update", resource="endpointslices", path=f"/{site.name}-"), amount, body)(site)

    return play


@contextlib.contextmanager
def silenced_connections(site: Site) -> Iterator[None]:
    """Existing connections carry no more data, and nothing reports that."""
    assert site.proxy is not None
    site.proxy.silence()
    yield


@contextlib.contextmanager
def dead_network(site: Site) -> Iterator[None]:
    """Neither existing nor new connections carry data."""
    assert site.proxy is not None
    site.proxy.silence()
    site.proxy.door(Door.DROPPED)
    try:
        yield
    finally:
        site.proxy.heal()


@contextlib.contextmanager
def wrong_certificate(site: Site) -> Iterator[None]:
    """The server shows a certificate of another authority."""
    assert site.proxy is not None
    site.proxy.certificate(site.stage.certificate(site.stage.servers.get(CONTROL).authority))
    site.proxy.reset()
    try:
        yield
    finally:
        site.proxy.certificate(None)


@contextlib.contextmanager
def renewed_certificate(site: Site) -> Iterator[None]:
    """The server shows a new certificate of the same authority, and the connections are closed."""
    assert site.proxy is not None
    site.proxy.certificate(site.stage.certificate(site.server.authority))
    site.proxy.reset()
    yield


@contextlib.contextmanager
def wrong_token(site: Site) -> Iterator[None]:
    """The kubeconfig's token is rejected; at the end the file gets a valid one."""
    right = site.kubeconfig.read_text()
    new = site.kubeconfig.with_suffix(".new")
    for text in (right.replace(site.server.token("hub"), "expired"), right):
        new.write_text(text)
        new.rename(site.kubeconfig)
        if text != right:
            yield


@contextlib.contextmanager
def flapping(site: Site) -> Iterator[None]:
    """All connections are reset every 300 ms, for six seconds."""
    assert site.proxy is not None
    for _ in range(20):
        site.proxy.reset()
        time.sleep(0.3)
    yield


@contextlib.contextmanager
def storm(site: Site) -> Iterator[None]:
    """All connections of all clusters of this hub are reset at the same moment, three times."""
    for _ in range(3):
        for other in site.lane.sites:
            assert other.proxy is not None
            other.proxy.reset()
        time.sleep(0.5)
    yield


@contextlib.contextmanager
def killed_server(site: Site) -> Iterator[None]:
    """The row's API server is killed (SIGKILL), and started again at the end."""
    site.broken.kill()
    yield
    site.broken.restart()


@contextlib.contextmanager
def restarted_server(site: Site) -> Iterator[None]:
    """The row's API server is stopped (SIGTERM) and started again."""
    site.broken.process.stop()
    site.broken.restart()
    yield


@contextlib.contextmanager
def paused_server(site: Site) -> Iterator[None]:
    """The row's API server is paused (SIGSTOP), and resumed at the end."""
    site.broken.pause()
    try:
        yield
    finally:
        site.broken.resume()
        site.broken.wait_ready()


@contextlib.contextmanager
def killed_etcd(site: Site) -> Iterator[None]:
    """The etcd of the row's API server is killed (SIGKILL), and started again at the end."""
    site.broken.etcd.kill()
    yield
    site.broken.etcd.start()
    site.broken.wait_ready()


@contextlib.contextmanager
def paused_etcd(site: Site) -> Iterator[None]:
    """The etcd of the row's API server is paused (SIGSTOP), and resumed at the end."""
    site.broken.etcd.pause()
    try:
        yield
    finally:
        site.broken.etcd.resume()
        site.broken.wait_ready()


@contextlib.contextmanager
def compacted(site: Site) -> Iterator[None]:
    """The row's API server loses its history and is restarted."""
    site.broken.forget_history()
    yield


@contextlib.contextmanager
def killed_hub(site: Site) -> Iterator[None]:
    """The hub is killed (SIGKILL), and started again at the end."""
    site.lane.kill()
    yield
    site.lane.start()


@contextlib.contextmanager
def ended_hub(site: Site) -> Iterator[None]:
    """The hub is stopped (SIGTERM), and started again at the end."""
    assert site.lane.end() == 0
    yield
    site.lane.start()


@contextlib.contextmanager
def paused_hub(site: Site) -> Iterator[None]:
    """The hub is paused (SIGSTOP), and resumed at the end."""
    site.lane.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        site.lane.signal(signal.SIGCONT)


@contextlib.contextmanager
def restarted_alone(site: Site) -> Iterator[None]:
    """The hub is killed (SIGKILL) and started while the row's cluster is away, which returns at the end."""
    assert site.proxy is not None
    site.lane.kill()
    site.proxy.door(Door.REFUSED)
    site.lane.start()
    yield
    site.proxy.heal()


@contextlib.contextmanager
def killed_leader(site: Site) -> Iterator[None]:
    """The leader of two replicas is killed (SIGKILL) and not started again."""
    site.lane.kill()
    yield


def inventory(mode: str) -> Play:
    """The row's inventory command does something else than printing its records."""

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        file = site.lane.folder / f"{site.name}.mode"
        file.write_text(mode)
        try:
            yield
        finally:
            file.write_text("good")

    return play
