"""Fixtures every test may ask for; the real API servers start when the first test asks for one.

``hub_cluster`` and ``remote_clusters`` live for the session. What a test left in them, or did to them, is undone after
it. Tests that use them carry the mark ``apiserver``: ``pytest -m "not apiserver"`` needs no binaries.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import drop_in
from tests.support.apiserver.binaries import KitUnavailable
from tests.support.apiserver.cleaning import clean
from tests.support.apiserver.controllers import ControllerManager
from tests.support.apiserver.fleet import ServerFleet
from tests.support.apiserver.server import ApiServer

HUB = "hub"
REMOTES = ("remote-1", "remote-2", "remote-3")
SERVERS = {"hub_cluster": (HUB,), "remote_clusters": REMOTES}
"""Which servers a fixture hands out."""
COLLECTED: Final = pytest.StashKey[list[tuple[pytest.Item, bool]]]()
"""Every test that was collected, and whether ``make test`` leaves it out."""
KIT_FIXTURES = frozenset({"server_fleet", *SERVERS})
FLEET: Final = pytest.StashKey[ServerFleet]()
"""The fleet of this process, once a test has asked for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare our option."""
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly, too: they take minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Declare our marks."""
    config.addinivalue_line("markers", "apiserver: needs real API servers (set by itself, see tests/conftest.py)")
    config.addinivalue_line("markers", "nightly: takes minutes; runs with --nightly only")


@pytest.hookimpl(tryfirst=True)  # who else deselects sees the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that use a real API server, directly or through a fixture; leave out what takes minutes.

    Models come first: one of their files takes ten minutes, in which the other processes run the rest.
    """
    items.sort(key=lambda item: "tests/model/" not in item.nodeid)
    for item in items:
        if KIT_FIXTURES & set(_fixtures_of(item)):
            item.add_marker("apiserver")
    config.stash[COLLECTED] = [(item, item.get_closest_marker("nightly") is not None) for item in items]
    if not config.getoption("--nightly"):
        config.hook.pytest_deselected(items=[item for item, nightly in config.stash[COLLECTED] if nightly])
        items[:] = [item for item, nightly in config.stash[COLLECTED] if not nightly]


def pytest_collection_finish() -> None:
    """Let the garbage collector leave the collected tests alone.

    There are so many that a full collection takes a second, for which a hub in this process blames a plugin.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before the fixtures that use the servers
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let those API servers run that the test uses."""
    if (fleet := item.config.stash.get(FLEET, None)) is not None:
        used = SERVERS.keys() & set(_fixtures_of(item))
        fleet.use([name for fixture in used for name in SERVERS[fixture]])


@pytest.fixture(scope="session")
def server_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFleet]:
    """All API servers the session's tests are going to want, starting side by side."""
    fleet = ServerFleet(tmp_path_factory.mktemp("servers"))
    wanted = {fixture for item in request.session.items for fixture in _fixtures_of(item)}
    try:
        fleet.begin([name for fixture, names in SERVERS.items() if fixture in wanted for name in names])
    except KitUnavailable as reason:
        # A machine without Go or network may run the rest; a CI that tests nothing must not be green.
        if os.environ.get("CI"):
            pytest.fail(f"CI has no real API servers to test against: {reason}", pytrace=False)
        pytest.skip(f"NO REAL API SERVERS, NOT TESTED: {reason}")
    request.config.stash[FLEET] = fleet
    yield fleet
    fleet.stop()


@pytest.fixture(scope="session")
def hub_cluster(server_fleet: ServerFleet) -> ApiServer:
    """The API server of the hub cluster."""
    return server_fleet.get(HUB)


@pytest.fixture(scope="session")
def remote_clusters(server_fleet: ServerFleet) -> tuple[ApiServer, ...]:
    """The API servers of three remote clusters."""
    return tuple(server_fleet.get(name) for name in REMOTES)


@pytest.fixture(scope="session")
def goccm() -> Path:
    """The yardstick, which Go builds from modules."""
    try:
        return drop_in.goccm()
    except KitUnavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI has no goccm to test against: {reason}", pytrace=False)
        pytest.skip(f"NO GOCCM, NOT TESTED: {reason}")


@pytest.fixture
def controller_manager(hub_cluster: ApiServer) -> Iterator[ControllerManager]:
    """A kube-controller-manager beside the hub cluster, for one test: garbage collection, namespaces, mirroring."""
    with ControllerManager(hub_cluster) as manager:
        yield manager


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands set up logging for their process; here that is everybody's."""
    root = logging.getLogger()
    handlers, raises, levels = root.handlers[:], logging.raiseExceptions, {root: root.level}
    levels |= {logger: logger.level for logger in _our_loggers()}
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raises
    for logger in (root, *_our_loggers()):
        logger.setLevel(levels.get(logger, logging.NOTSET))
    logging.captureWarnings(capture=False)


@pytest.fixture(autouse=True)
def _servers_as_they_were(request: pytest.FixtureRequest) -> Iterator[None]:
    """Repair and empty the servers a test used, after it and everything it started are done."""
    yield
    for fixture in SERVERS.keys() & set(request.fixturenames):
        servers = request.getfixturevalue(fixture)
        for server in [servers] if isinstance(servers, ApiServer) else servers:
            server.ensure_running()
            clean(server.api)


def _our_loggers() -> list[logging.Logger]:
    return [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == "hub"]


def _fixtures_of(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", ()))
