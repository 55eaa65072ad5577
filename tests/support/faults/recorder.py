"""Records every state of every EndpointSlice of a hub cluster, in its own process and independently of the hub.

It watches the API server's etcd from a revision on. The watch has each committed state exactly once, in order, even
while the API server is paused, dead or has lost its history. A broken watch is resumed after the last revision
received. If that is impossible, because etcd was compacted, the recording has a ``lost`` entry, and tests that use it
must fail. The API server must store JSON (``--storage-media-type=application/json``).

Run as a program, it appends one JSON object per line to a file. :class:`Recording` starts it and follows the file.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.faults.judge import Commit, Slice

T = TypeVar("T")

PREFIX = "/registry/endpointslices/"
ROOT = Path(__file__).parents[3]
SILENCE = 600.0
"""Seconds that a connection may be silent; :meth:`Recording.sync` proves that a recording is complete."""
PAUSE = 0.05


class Lost(Exception):
    """The history is incomplete."""


# --- the program ------------------------------------------------------------------------------------------------


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


RANGE = {"key": _encoded(PREFIX), "range_end": _encoded(PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1))}


def _ask(port: int, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SILENCE)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise OSError(f"{path}: {answer.status} {answer.read()[:200]!r}")
    return answer


def _entry(kv: dict[str, Any], *, deleted: bool) -> dict[str, Any]:
    key = base64.b64decode(kv["key"]).decode().removeprefix(PREFIX)
    content = None if deleted else json.loads(base64.b64decode(kv["value"]))
    return {"at": time.monotonic(), "revision": int(kv["mod_revision"]), "key": key, "slice": content}


def begin(port: int) -> tuple[int, list[dict[str, Any]]]:
    """The present revision, and the slices at that revision."""
    with contextlib.closing(_ask(port, "/v3/kv/range", RANGE)) as answer:
        found = json.loads(answer.read())
    return int(found["header"]["revision"]), [_entry(kv, deleted=False) for kv in found.get("kvs", [])]


def follow(port: int, after: int) -> Iterator[dict[str, Any]]:
    """Yield every change after a revision, until the connection ends.

    Raises:
        Lost: changes after the revision were compacted, or the answer is not a watch.
        OSError, http.client.HTTPException: the connection failed.
    """
    wanted = {"create_request": {**RANGE, "start_revision": str(after + 1)}}
    with contextlib.closing(_ask(port, "/v3/watch", wanted)) as answer:
        for line in answer:
            message = json.loads(line)
            result = message.get("result")
            if result is None or result.get("canceled") or result.get("compact_revision"):
                raise Lost(f"the watch after revision {after} is refused: {line[:300]!r}")
            for event in result.get("events", []):
                yield _entry(event["kv"], deleted=event.get("type") == "DELETE")


def record(port: int, out: Path) -> None:
    """Write the history until killed, or until it is incomplete."""
    with out.open("a", buffering=1) as file:

        def say(entry: dict[str, Any]) -> None:
            file.write(json.dumps(entry) + "\n")

        revision, slices = begin(port)
        for slice_ in slices:
            say({**slice_, "first": True})
        say({"at": time.monotonic(), "began": revision})
        try:
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    for change in follow(port, revision):
                        say(change)
                        revision = change["revision"]
                say({"at": time.monotonic(), "again": revision})
                time.sleep(PAUSE)
        except (Lost, ValueError, KeyError) as error:
            say({"at": time.monotonic(), "lost": f"{type(error).__name__}: {error}"})


# --- the other side ---------------------------------------------------------------------------------------------


class Recording:
    """A running recorder, and what it has written so far; a context manager.

    Attributes:
        commits: the recorded changes.
        lost: why the history is incomplete; "" if it is not.
        breaks: how often the watch was resumed.
    """

    def __init__(self, etcd_port: int, file: Path) -> None:
        self._argv = [sys.executable, "-m", "tests.support.faults.recorder", str(etcd_port), str(file)]
        self._file = file
        self._log = file.with_suffix(".log")
        self._child: subprocess.Popen[bytes] | None = None
        self._news = threading.Condition()
        self._ended = False
        self._began = False
        self._slices: dict[str, Slice] = {}
        self.commits: list[Commit] = []
        self.lost = ""
        self.breaks = 0

    def __enter__(self) -> Self:
        self._file.touch()
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(self._argv, cwd=ROOT, stdout=log, stderr=log)
        self._thread = threading.Thread(target=self._tail, name="recording", daemon=True)
        self._thread.start()
        self.wait(lambda: self._began or bool(self.lost), 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        assert self._child is not None
        self._child.kill()
        self._child.wait(10)
        self._thread.join(10)

    @property
    def pid(self) -> int:
        """The recorder's process id."""
        assert self._child is not None
        return self._child.pid

    def addresses(self, service: str) -> frozenset[str]:
        """The addresses that are published for ``namespace/name`` now."""
        with self._news:
            return frozenset(
                address
                for slice_ in self._slices.values()
                if slice_.service == service
                for address in slice_.conditions
            )

    def wait(self, check: Callable[[], T], timeout: float) -> T:
        """Wait up to ``timeout`` seconds until ``check`` returns something true; returns its last result."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not (answer := check()) and (left := deadline - time.monotonic()) > 0:
                self._news.wait(min(left, 1.0))
            return answer

    def sync(self, mark: Callable[[], str], timeout: float = 30.0) -> None:
        """Check that the recorder has seen everything up to now: ``mark`` creates a slice and returns its key.

        If the slice does not arrive in time, the recording is lost.
        """
        key = mark()
        self.wait(lambda: bool(self.lost) or any(commit.key == key for commit in self.commits), timeout)
        if not self.lost and all(commit.key != key for commit in self.commits):
            self.lost = f"slice {key} was not seen within {timeout:g} s"

    def _tail(self) -> None:
        with self._file.open() as file:
            line = ""
            while True:
                line += file.readline()
                if line.endswith("\n"):
                    self._take(json.loads(line))
                    line = ""
                    continue
                if self._ended:
                    return
                if self._child is not None and self._child.poll() is not None and not self.lost:
                    self._tell(f"the recorder has ended: {self._log.read_text()[-500:]}")
                time.sleep(0.005)

    def _take(self, entry: dict[str, Any]) -> None:
        if "lost" in entry:
            self._tell(entry["lost"])
            return
        with self._news:
            if "began" in entry:
                self._began = True
            elif "again" in entry:
                self.breaks += 1
            else:
                commit = Commit.of(entry)
                self.commits.append(commit)
                if commit.slice is None:
                    self._slices.pop(commit.key, None)
                else:
                    self._slices[commit.key] = commit.slice
            self._news.notify_all()

    def _tell(self, lost: str) -> None:
        with self._news:
            self.lost = self.lost or lost
            self._news.notify_all()


def main() -> None:
    """Record until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    record(given.port, given.out)


if __name__ == "__main__":
    main()
