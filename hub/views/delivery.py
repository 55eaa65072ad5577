"""Calls one consumer's hooks in a thread of its own, and repeats every call until it succeeds.

Only the newest state of each view is delivered: a slow consumer misses states in between, but never the last one, and
memory is bounded by the number of views. Exceptions and slow calls of a consumer do not affect other consumers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from hub.model import EndpointView
from hub.runtime.backoff import Backoff
from hub.views.board import Owner
from hub.views.consumers import describe
from hub.views.join import Views

log = logging.getLogger(__name__)

HUNG_AFTER: Final = 30.0
"""Seconds after which a running call is logged; a call in a thread cannot be cancelled."""

WARNING_INTERVAL: Final = 10.0
"""Seconds between two warnings about one consumer: while its backend is down, every call fails."""

Key = tuple[str, str, str]
"""Cluster, namespace and name of a view."""


@dataclass(slots=True)
class _Wanted:
    """A state of one view that must be delivered; ``view`` is None if the view was deleted."""

    view: EndpointView | None
    not_before: float = 0.0
    backoff: Backoff | None = None


class Delivery:
    """One consumer.

    Args:
        name: name of the consumer's entry point.
        load: returns the consumer's hooks; called in the thread, may block or raise anything.
        after: an earlier delivery to the same consumer; its last call must end before the first one of this delivery.

    Attributes:
        problem: why the consumer cannot be called, or the error of its last call; "" if there is none.
        calls: number of successful calls since the start.
    """

    def __init__(self, name: str, load: Callable[[], Any], after: Delivery | None = None) -> None:
        self.name = name
        self.problem = ""
        self.calls = 0
        self._load = load
        self._after = after
        self._thread = threading.Thread(target=self._run, name=f"views consumer {name}", daemon=True)
        self._owners: dict[Owner, Views] = {}
        self._wanted: dict[Key, _Wanted] = {}
        self._passed: dict[Key, EndpointView] = {}
        """The last state passed to the consumer; if the view is in ``_wanted``, that call may have failed."""
        self._lists_due: dict[str, float] = {}
        """Clusters whose complete list must be announced -> earliest time."""
        self._changed = threading.Condition()
        self._closed = False
        self._calling: tuple[str, float] | None = None
        self._reported = False
        self._quiet_until = 0.0
        self._unlogged = 0

    def start(self) -> None:
        """Start the thread, a daemon, so that a call that hangs does not keep the process alive."""
        self._thread.start()

    def close(self) -> None:
        """Make no further call; a running call continues."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self) -> None:
        """Wait until the last call has ended."""
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Number of views with an undelivered state."""
        return len(self._wanted)

    # --- in the event loop: a listener of the board --------------------------------------------------

    def changed(self, owner: Owner, views: Views) -> None:
        """The views of a Service have changed to ``views``."""
        before = self._owners.get(owner, {})
        if views:
            self._owners[owner] = views
        else:
            self._owners.pop(owner, None)
        with self._changed:
            for name, view in views.items():
                if before.get(name) != view:
                    self._want((owner.cluster, owner.namespace, name), view)
            for name in before.keys() - views.keys():
                self._want((owner.cluster, owner.namespace, name), None)
            self._changed.notify()

    def complete(self, clusters: Iterable[str]) -> None:
        """These clusters are complete: announce their lists once all their views are delivered."""
        with self._changed:
            self._lists_due.update(dict.fromkeys(clusters, 0.0))
            self._changed.notify()

    def _want(self, key: Key, view: EndpointView | None) -> None:
        known = self._wanted.get(key)
        if known is None:
            self._wanted[key] = _Wanted(view)
        else:  # the view keeps its place in the queue and its retry time
            known.view = view

    def log_hung_call(self) -> None:
        """Log a call that hangs. The event loop calls this every few seconds."""
        calling = self._calling
        if calling is None or time.monotonic() - calling[1] < HUNG_AFTER:
            self._reported = False
        elif not self._reported:
            self._reported = True
            self.problem = f"hangs in {calling[0]}"
            text = "views: consumer %r hangs in %s; %d views wait for it, other consumers are not affected"
            log.warning(text, self.name, calling[0], self.waiting)

    # --- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._after is not None:
                self._calling = ("an earlier call", time.monotonic())
                self._after.join()
                self._after = None
            self._calling = ("its import", time.monotonic())
            hooks = self._load()
        except BaseException as error:  # noqa: BLE001 - plugin code
            self.problem = f"cannot be loaded: {describe(error)}"
            log.warning("views: consumer %r %s; it is not called", self.name, self.problem)
            return
        finally:
            self._calling = None
        while (step := self._next()) is not None:
            step(hooks)

    def _next(self) -> Callable[[Any], None] | None:
        """Wait for the next call and return it; None = closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                soonest = now + 3600.0
                for key, wanted in self._wanted.items():
                    if wanted.not_before <= now:
                        del self._wanted[key]
                        return lambda hooks, key=key, wanted=wanted: self._deliver(hooks, key, wanted)  # type: ignore[misc]
                    soonest = min(soonest, wanted.not_before)
                for cluster, not_before in self._lists_due.items():
                    if any(key[0] == cluster for key in self._wanted):
                        continue
                    if not_before <= now:
                        del self._lists_due[cluster]
                        return lambda hooks, cluster=cluster: self._announce_list(hooks, cluster)  # type: ignore[misc]
                    soonest = min(soonest, not_before)
                self._changed.wait(soonest - now)
        return None

    def _deliver(self, hooks: Any, key: Key, wanted: _Wanted) -> None:
        view, last = wanted.view, self._passed.get(key)
        if view is None and last is None:  # the consumer does not know the view
            return
        try:
            if view is None:
                self._call(f"hub_endpoint_deleted of {key[1]}/{key[2]}", hooks.hub_endpoint_deleted, view=last)
                del self._passed[key]
            else:
                self._passed[key] = view
                self._call(f"hub_endpoint_upserted of {key[1]}/{key[2]}", hooks.hub_endpoint_upserted, view=view)
        except BaseException as error:  # noqa: BLE001 - plugin code
            backoff = wanted.backoff or Backoff(base=0.5, cap=60.0, jitter=0.2)
            delay = backoff.next(time.monotonic())
            with self._changed:
                newer = self._wanted.get(key)
                again = _Wanted(view if newer is None else newer.view, time.monotonic() + delay, backoff)
                self._wanted[key] = again
            self._record_failure(error, delay)

    def _announce_list(self, hooks: Any, cluster: str) -> None:
        views = tuple(view for key, view in sorted(self._passed.items()) if key[0] == cluster)
        try:
            call = hooks.hub_endpoints_listed
            self._call(f"hub_endpoints_listed of {cluster}", call, cluster=cluster, views=views)
        except BaseException as error:  # noqa: BLE001 - plugin code
            with self._changed:
                self._lists_due.setdefault(cluster, time.monotonic() + 5.0)
            self._record_failure(error, 5.0)

    def _call(self, what: str, hook: Callable[..., object], **arguments: Any) -> None:
        self._calling = (what, time.monotonic())
        try:
            hook(**arguments)
        except BaseException as error:
            raise _Failed(what) from error
        finally:
            self._calling = None
        self.calls += 1
        self.problem = ""

    def _record_failure(self, error: BaseException, delay: float) -> None:
        self.problem = f"{error}: {describe(error.__cause__ or error)}"
        now = time.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more calls failed before)" if self._unlogged else ""
        text = "views: consumer %r: %s; again in %.1f s, other consumers are not affected%s"
        log.warning(text, self.name, self.problem, delay, more)
        self._quiet_until, self._unlogged = now + WARNING_INTERVAL, 0


class _Failed(Exception):
    """A call raised; the message names the call."""
