"""One show from beginning to end: the world, the hub against it, the account, the audience."""

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
"""Where the status page is: on a port that is free."""
UNWATCHED: Final = 30.0
"""Seconds a show lasts that nobody can end by Ctrl-C."""
SETTLE: Final = 10.0
"""Seconds after the end in which the last changes may still arrive."""
PATIENCE: Final = 3.0
"""Seconds to wait for what is on its way before a cluster goes dark."""
LOOK: Final = 0.002
"""Seconds between two looks at the hub cluster: how exactly latencies are measured."""
FRAME: Final = 0.25
"""Seconds between two pictures."""


class Audience(Protocol):
    """Who watches."""

    def tell(self, event: Event) -> None:
        """Something happened."""
        ...

    def show(self, picture: Picture) -> None:
        """The moment."""
        ...


class Terminal:
    """A live table."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def tell(self, event: Event) -> None:
        """It is in the next picture."""

    def show(self, picture: Picture) -> None:
        """Draw."""
        self._live.update(render(picture, self._console.size.height), refresh=True)


class Lines:
    """Plain lines, for a file or a pipe."""

    def tell(self, event: Event) -> None:
        """One line."""
        click.echo(str(event))

    def show(self, picture: Picture) -> None:
        """Not drawn."""


def run(duration: float | None) -> int:
    """See :func:`hub_testkit.demo.main`."""
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
    with _signals(stop.set):
        if not terminal:
            return await show(World(folder), Lines(), duration, stop, _said)
        console = Console()
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            return await show(World(folder), Terminal(console, live), duration, stop, footer)


def footer(world: World, urls: Sequence[str] = ()) -> tuple[str, ...]:
    """Where everything is, and what to try meanwhile; of a world that was entered, with its status page at ``urls``."""
    flags = "".join(f" --allow-api-host {host}" for host in sorted(world.cloud.allow_api_hosts))
    return (
        f"in {world.folder}: clusters.yaml, kubeconfigs, hub.log",
        f"try there meanwhile: hub nodes --registry clusters.yaml --kubeconfig kubeconfigs/hub{flags}",
        *(f"in a browser: {url}" for url in urls),
    )


def _said(world: World, urls: Sequence[str]) -> tuple[str, ...]:
    """The same, said once and before everything else."""
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
    """Let the world happen, with a hub following it.

    Args:
        world: not entered yet.
        audience: who watches.
        duration: seconds; None = until ``stop``.
        stop: set it to end early.
        notes: what is shown below the picture; asked once the world was entered and its status page has
            addresses.
        settle: seconds after the end in which the last changes may still arrive.

    Raises:
        HubError: the hub could not be started.
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
        await hub.catalog.load_async(world.cloud.provider)  # an installation without the entry point says so at once
        urls = await stack.enter_async_context(listening(Listen(PAGE), hub))
        stage = Stage(world, hub, audience, None if duration is None else began + duration, notes(world, urls))
        async with _running(hub), _beating(world):
            return await stage.play(stop, settle)


class Stage:
    """The parts of a show that go on side by side.

    Args:
        until: when it ends; None = when it is told to.
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
        """Everything that should be published is."""

    async def play(self, stop: asyncio.Event, settle: float) -> Verdict:
        """From the first endpoint to the verdict."""
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
            async with self._stepping:  # an incident that has begun comes to its end
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
        """Let the script happen, once everything is published."""
        await self._quiet.wait()
        start = self._clock.now()
        for step in script(None if self._until is None else self._until - start):
            await self._clock.sleep(max(0.0, start + step.at - self._clock.now()))
            if step.action == "dark":  # what it said last must be beyond doubt
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE):
                        await self._quiet.wait()
            async with self._stepping:
                await self._world.happen(step)
                # How soon a cluster is noticed again is a matter of how long it was away.
                change = self._enter(self._narrator.words(step), timed=step.action != "light")
                self._narrator.begun(step, change)

    def _enter(self, text: str, *, timed: bool = True) -> Change:
        self._quiet.clear()
        return self._ledger.happened(text, self._world.wanted(), self._clock.now(), timed=timed)

    async def _look(self) -> None:
        """Look at what consumers see."""
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
async def _running(hub: Hub) -> AsyncIterator[None]:
    """The hub as ``hub run`` runs it."""
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
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """End the show at the first SIGINT or SIGTERM; a second one is as rude as ever."""
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
    """Let everything that is logged go into a file and nowhere else."""
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
    """uvloop, as in production; asyncio's own where that is not installed."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
