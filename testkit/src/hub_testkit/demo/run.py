"""Runs the demo from start to end: the world, the hub, the ledger and the audience."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import click
from rich.console import Console
from rich.live import Live

from hub.app.hub import Hub, Options, assemble
from hub.cli.options import BindAddress
from hub.report.server import Listen, listening
from hub.runtime.clock import SystemClock
from hub_testkit.demo.layout import CLUSTERS, SERVICES
from hub_testkit.demo.ledger import Change, Ledger, Verdict, verdict
from hub_testkit.demo.narrator import Narrator
from hub_testkit.demo.screen import Event, Picture, render
from hub_testkit.demo.script import script
from hub_testkit.demo.world import World

PAGE: Final = BindAddress("127.0.0.1", 0)
"""The address of the status page; 0 = any free port."""

UNWATCHED: Final = 30.0
"""Seconds that the demo runs without a terminal, where it cannot be ended by Ctrl-C."""

SETTLE: Final = 10.0
"""Seconds after the end in which the last changes may still be published."""

PATIENCE: Final = 3.0
"""Seconds to wait for pending changes before a cluster's API server is stopped."""

LOOK: Final = 0.002
"""Seconds between two reads of the hub cluster; latencies are this precise."""

FRAME: Final = 0.25
"""Seconds between two pictures."""


class Audience(Protocol):
    """Receives the output of the demo."""

    def tell(self, event: Event) -> None:
        """Shows an event."""
        ...

    def show(self, picture: Picture) -> None:
        """Shows the picture of the moment."""
        ...


class Terminal:
    """Draws a live table on a terminal."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def tell(self, event: Event) -> None:
        """Does nothing: the next picture has the event."""

    def show(self, picture: Picture) -> None:
        """Draws the picture."""
        self._live.update(render(picture, self._console.size.height), refresh=True)


class Lines:
    """Prints plain lines, for a file or a pipe."""

    def tell(self, event: Event) -> None:
        """Prints the event as a line."""
        click.echo(str(event))

    def show(self, picture: Picture) -> None:
        """Does nothing."""


def run(duration: float | None) -> int:
    """Runs the demo; see :func:`hub_testkit.demo.main`."""
    folder = Path(tempfile.mkdtemp(prefix="hub-demo-"))
    log_to(folder / "hub.log")
    terminal = sys.stdout.isatty()
    if not terminal and duration is None:
        duration = UNWATCHED
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        result = runner.run(_run(folder, duration, terminal=terminal))
    click.echo(result.text)
    return 0 if result.ok else 1


async def _run(folder: Path, duration: float | None, *, terminal: bool) -> Verdict:
    stop = asyncio.Event()
    with signals(stop.set):
        if not terminal:
            return await show(World(folder), Lines(), duration, stop, _said)
        console = Console()
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            return await show(World(folder), Terminal(console, live), duration, stop, footer)


def footer(world: World, urls: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns lines with the demo's files, a command to try and the addresses of the status page.

    Args:
        world: The world, already entered.
        urls: Addresses of the status page.
    """
    flags = "".join(f" --allow-api-host {host}" for host in sorted(world.cloud.allow_api_hosts))
    return (
        f"in {world.folder}: clusters.yaml, kubeconfigs, hub.log",
        f"try there meanwhile: hub nodes --registry clusters.yaml --kubeconfig kubeconfigs/hub{flags}",
        *(f"in a browser: {url}" for url in urls),
    )


def _said(world: World, urls: Sequence[str]) -> tuple[str, ...]:
    """Prints the footer once, before any event, and returns no lines for a picture."""
    click.echo("\n".join(footer(world, urls)))
    return ()


async def show(
    world: World,
    audience: Audience,
    duration: float | None,
    stop: asyncio.Event,
    notes: Callable[[World, Sequence[str]], tuple[str, ...]] = lambda *_: (),
    settle: float = SETTLE,
) -> Verdict:
    """Runs the world's script with a hub that follows it.

    Args:
        world: The world, not entered yet.
        audience: Receives events and pictures.
        duration: Seconds; None = until ``stop``.
        stop: Ends the demo early when it is set.
        notes: Returns the lines below the picture. Called with the entered world and the status page's addresses.
        settle: Seconds after the end in which the last changes may still be published.

    Raises:
        HubError: The hub could not be started.
    """
    clock = SystemClock()
    began = clock.now()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world)
        folder = world.folder
        options = Options(
            registry=f"{folder}/clusters.yaml",
            kubeconfig=f"{folder}/kubeconfigs/hub",
            allow_api_hosts=world.cloud.allow_api_hosts,
        )
        hub = await stack.enter_async_context(assemble(options, clock))
        await hub.catalog.load_async(world.cloud.provider)  # fails at once if the entry point is not installed
        urls = await stack.enter_async_context(listening(Listen(PAGE), hub))
        stage = Stage(world, hub, audience, None if duration is None else began + duration, notes(world, urls))
        async with running(hub), _beating(world):
            return await stage.play(stop, settle)


class Stage:
    """The concurrent parts of the demo: the script, the observation of the hub cluster and the output.

    Args:
        world: The world.
        hub: The hub, which the caller runs.
        audience: Receives events and pictures.
        until: When the demo ends, on the hub's clock; None = when it is stopped.
        notes: Lines below the picture.
    """

    def __init__(self, world: World, hub: Hub, audience: Audience, until: float | None, notes: tuple[str, ...]) -> None:
        self._world = world
        self._clock = hub.clock
        self._audience = audience
        self._until = until
        self._ledger = Ledger()
        self._narrator = Narrator(world, hub, self._ledger, audience.tell, notes)
        self._published = world.published()
        self._version = -1
        self._stepping = asyncio.Lock()
        self._quiet = asyncio.Event()
        """Set while exactly the wanted endpoints are published."""

    async def play(self, stop: asyncio.Event, settle: float) -> Verdict:
        """Runs until the end or until ``stop`` is set, waits up to ``settle`` seconds and returns the verdict."""
        self._enter(f"start: {self._world.nodes} nodes")
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(self._look(), name="demo: look at the hub cluster"),
                group.create_task(self._draw(), name="demo: draw"),
            ]
            director = group.create_task(self._direct(), name="demo: direct")
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._until is None else self._until - self._clock.now()):
                    await stop.wait()
            async with self._stepping:  # do not cancel an incident halfway
                director.cancel()
            self._narrator.end()
            with suppress(TimeoutError):
                async with asyncio.timeout(settle):
                    await self._quiet.wait()
            for part in parts:
                part.cancel()
        self._observe()
        self._audience.show(self._narrator.picture(self._published, self._until))
        return verdict(
            self._ledger,
            self._world.published(),
            self._world.wanted(),
            clusters=len(CLUSTERS),
            nodes=self._world.nodes,
            services=len(SERVICES),
            writes=self._narrator.writes,
        )

    async def _direct(self) -> None:
        """Plays the script, starting when everything is published."""
        await self._quiet.wait()
        start = self._clock.now()
        for step in script(None if self._until is None else self._until - start):
            await self._clock.sleep(max(0.0, start + step.at - self._clock.now()))
            if step.action == "dark":  # all of the cluster's last state must have been published before
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE):
                        await self._quiet.wait()
            async with self._stepping:
                await self._world.happen(step)
                # The reconnect to a cluster takes longer the longer it was away, so it is not a latency.
                change = self._enter(self._narrator.words(step), timed=step.action != "light")
                self._narrator.begun(step, change)

    def _enter(self, text: str, *, timed: bool = True) -> Change:
        self._quiet.clear()
        return self._ledger.happened(text, self._world.wanted(), self._clock.now(), timed=timed)

    async def _look(self) -> None:
        """Observes what consumers see, for ever."""
        while True:
            self._observe()
            await self._clock.sleep(LOOK if self._ledger.pending else 10 * LOOK)

    def _observe(self) -> None:
        if self._world.hub.version != self._version:
            self._version = self._world.hub.version
            self._published = self._world.published()
        for change in self._ledger.observed(self._published, self._narrator.writes, self._clock.now()):
            self._narrator.done(change)
        if self._ledger.pending or self._published != self._world.wanted():
            self._quiet.clear()
        else:
            self._quiet.set()

    async def _draw(self) -> None:
        while True:
            self._audience.show(self._narrator.picture(self._published, self._until))
            await self._clock.sleep(FRAME)


@asynccontextmanager
async def running(hub: Hub) -> AsyncIterator[None]:
    """Runs the hub as ``hub run`` does."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hub.run(stop), name="demo: the hub")
        try:
            yield
        finally:
            stop.set()


@asynccontextmanager
async def _beating(world: World) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.beat(), name="demo: heartbeats")
        try:
            yield
        finally:
            task.cancel()


@contextmanager
def signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` at the first SIGINT or SIGTERM; a second one has its default effect."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def arrived() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        stop()

    for number in numbers:
        loop.add_signal_handler(number, arrived)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def log_to(path: Path) -> None:
    """Writes all logs to a file, and nowhere else."""
    handler = logging.FileHandler(path, encoding="utf-8")
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("hub").setLevel(logging.DEBUG)
    logging.captureWarnings(capture=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop, as in production; None for asyncio's own loop if uvloop is not installed."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
