"""How faults are played: each play breaks something for the length of a block."""

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


def remote(kind: Kind, concerned: Where, amount: float = 0.0, body: bytes = b"", first: tuple[Fault, ...] = ()) -> Play:
    """Between the hub and the row's cluster; ``first`` come before it."""
    faults = (*first, Fault(kind, concerned, amount, body))

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        assert site.proxy is not None
        with site.proxy.broken(*faults):
            yield

    return play


@contextlib.contextmanager
def unheard(site: Site) -> Iterator[None]:
    """A node is not Ready, then nothing arrives, and meanwhile it is Ready again: until long after its grace."""
    assert site.proxy is not None
    name = next(reversed(site.nodes))  # the row itself takes the oldest away
    site.turn(name, "False")
    time.sleep(2.0)  # the hub is told
    with site.proxy.broken(Fault(Kind.BLACKHOLE, EVERYTHING)):
        site.turn(name, "True")
        yield


def relisting(kind: Kind, concerned: Where, amount: float = 0.0) -> Play:
    """The watch says that it is too old, and then this."""
    return remote(kind, concerned, amount, first=(Fault(Kind.INSERT, NODE_WATCH, body=GONE, times=1),))


def answering(body: bytes) -> Play:
    """The watch breaks, and then everything is answered this."""
    return remote(Kind.ANSWER, EVERYTHING, body=body, first=(Fault(Kind.RESET, NODE_WATCH, times=1),))


def door(state: Door) -> Play:
    """New connections to the row's cluster; those there are end."""

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


def local(kind: Kind, concerned: Where, amount: float = 0.0, body: bytes = b"", first: tuple[Fault, ...] = ()) -> Play:
    """Between the hub and its own API server; ``first`` come before it."""
    faults = (*first, Fault(kind, concerned, amount, body))

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        assert site.lane.proxy is not None
        with site.lane.proxy.broken(*faults):
            yield

    return play


def writing(kind: Kind, amount: float = 0.0, body: bytes = b"") -> Play:
    """While the hub writes the row's own slices, which are named after its Service."""

    def play(site: Site) -> contextlib.AbstractContextManager[None]:
        return local(kind, where("update", resource="endpointslices", path=f"/{site.name}-"), amount, body)(site)

    return play


@contextlib.contextmanager
def forgotten(site: Site) -> Iterator[None]:
    """The connections there are carry nothing any more, and nobody ever says so."""
    assert site.proxy is not None
    site.proxy.silence()
    yield


@contextlib.contextmanager
def dead(site: Site) -> Iterator[None]:
    """Neither the connections there are nor new ones carry anything."""
    assert site.proxy is not None
    site.proxy.silence()
    site.proxy.door(Door.DROPPED)
    try:
        yield
    finally:
        site.proxy.heal()


@contextlib.contextmanager
def wrong_certificate(site: Site) -> Iterator[None]:
    """Somebody else's certificate."""
    assert site.proxy is not None
    site.proxy.certificate(site.stage.certificate(site.stage.servers.get(CONTROL).authority))
    site.proxy.reset()
    try:
        yield
    finally:
        site.proxy.certificate(None)


@contextlib.contextmanager
def renewed_certificate(site: Site) -> Iterator[None]:
    """Another certificate of the same authority, and connections made anew."""
    assert site.proxy is not None
    site.proxy.certificate(site.stage.certificate(site.server.authority))
    site.proxy.reset()
    yield


@contextlib.contextmanager
def wrong_token(site: Site) -> Iterator[None]:
    """The kubeconfig's token is not accepted any more; then another one is written there."""
    right = site.kubeconfig.read_text()
    new = site.kubeconfig.with_suffix(".new")
    for text in (right.replace(site.server.token("hub"), "expired"), right):
        new.write_text(text)
        new.rename(site.kubeconfig)
        if text != right:
            yield


@contextlib.contextmanager
def flapping(site: Site) -> Iterator[None]:
    """A RST on everything, every 300 ms for six seconds."""
    assert site.proxy is not None
    for _ in range(20):
        site.proxy.reset()
        time.sleep(0.3)
    yield


@contextlib.contextmanager
def storm(site: Site) -> Iterator[None]:
    """All connections of all clusters of this hub end at the same moment, three times."""
    for _ in range(3):
        for each in site.lane.sites:
            assert each.proxy is not None
            each.proxy.reset()
        time.sleep(0.5)
    yield


@contextlib.contextmanager
def killed_server(site: Site) -> Iterator[None]:
    """``kill -9`` of the row's API server; started again at the end."""
    site.broken.kill()
    yield
    site.broken.restart()


@contextlib.contextmanager
def restarted_server(site: Site) -> Iterator[None]:
    """SIGTERM, and started again."""
    site.broken.process.stop()
    site.broken.restart()
    yield


@contextlib.contextmanager
def paused_server(site: Site) -> Iterator[None]:
    """SIGSTOP and SIGCONT of the row's API server."""
    site.broken.pause()
    try:
        yield
    finally:
        site.broken.resume()
        site.broken.wait_ready()


@contextlib.contextmanager
def killed_etcd(site: Site) -> Iterator[None]:
    """``kill -9`` of the etcd behind the row's API server; started again at the end."""
    site.broken.etcd.kill()
    yield
    site.broken.etcd.start()
    site.broken.wait_ready()


@contextlib.contextmanager
def paused_etcd(site: Site) -> Iterator[None]:
    """SIGSTOP and SIGCONT of the etcd behind the row's API server."""
    site.broken.etcd.pause()
    try:
        yield
    finally:
        site.broken.etcd.resume()
        site.broken.wait_ready()


@contextlib.contextmanager
def compacted(site: Site) -> Iterator[None]:
    """The row's API server forgets its history and starts again."""
    site.broken.forget_history()
    yield


@contextlib.contextmanager
def killed_hub(site: Site) -> Iterator[None]:
    """``kill -9`` of the hub; started again at the end."""
    site.lane.kill()
    yield
    site.lane.start()


@contextlib.contextmanager
def ended_hub(site: Site) -> Iterator[None]:
    """SIGTERM; started again at the end."""
    assert site.lane.end() == 0
    yield
    site.lane.start()


@contextlib.contextmanager
def paused_hub(site: Site) -> Iterator[None]:
    """SIGSTOP and SIGCONT of the hub."""
    site.lane.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        site.lane.signal(signal.SIGCONT)


@contextlib.contextmanager
def restarted_alone(site: Site) -> Iterator[None]:
    """``kill -9`` of the hub, and a start without the row's cluster, which returns at the end."""
    assert site.proxy is not None
    site.lane.kill()
    site.proxy.door(Door.REFUSED)
    site.lane.start()
    yield
    site.proxy.heal()


@contextlib.contextmanager
def killed_leader(site: Site) -> Iterator[None]:
    """``kill -9`` of the leader of two replicas; nobody starts it again."""
    site.lane.kill()
    yield


def inventory(mode: str) -> Play:
    """What the row's inventory command does instead of printing its records."""

    @contextlib.contextmanager
    def play(site: Site) -> Iterator[None]:
        file = site.lane.folder / f"{site.name}.mode"
        file.write_text(mode)
        try:
            yield
        finally:
            file.write_text("good")

    return play
