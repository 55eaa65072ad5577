"""Fuzzing of a running hub's listener: damaged requests, and requests generated from its OpenAPI description.

    python -m tests.fuzz.listener [TIMES]

The hub runs in a thread of this process, with simulated clusters and endpoint views. A request may take one second of
CPU time and five seconds in total; after all of them the hub must answer as before.
"""

# ruff: noqa: E501 - tables of inputs

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import schemathesis
from hub_testkit import SimulatedCluster, make_node, make_service
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok

from hub.app.hub import Options, assemble
from hub.report.server import Listen, listening
from tests.fuzz.bounds import MEMORY, SECONDS, peak, reset_peak
from tests.fuzz.mutate import damaged
from tests.support.waiting import until
from tests.unit.report.conftest import Where

PATIENCE: Final = 5.0
"""Seconds for a response. The listener closes a connection after ten seconds without a complete request, which does not
happen here."""
LARGEST_ANSWER: Final = 4 << 20
EXAMPLES: Final = {"bytes": 80, "openapi": 6}
"""Examples in an ordinary run; for ``openapi``, of each operation."""
CHECKED: Final = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance",
)  # fmt: skip


async def _serve(folder: Path, urls: list[str], ready: threading.Event, stop: asyncio.Event) -> None:
    remote, here = SimulatedCluster("eu"), SimulatedCluster("hub")
    remote.nodes.add(make_node("n1", "10.0.0.1"))
    annotations = {"dcontroller.io/endpointslice-controller-enabled": "true"}
    here.put(make_service("edge", "payments", ports=[{"port": 443}], annotations=annotations))
    eu = {
        "name": "eu",
        "allowedCIDRs": ["10.0.0.0/8"],
        "provider": {"name": "node-addresses"},
    }
    async with AsyncExitStack() as stack:
        for cluster in (remote, here):
            await stack.enter_async_context(cluster)
        eu["kubeconfig"] = {"path": str(remote.write_kubeconfig(folder / "eu"))}
        service = {"name": "payments", "namespace": "edge", "sources": [{"cluster": "eu"}], "ports": [{"port": 30443}]}
        registry = folder / "clusters.yaml"
        registry.write_text(json.dumps({"version": 1, "clusters": [eu], "services": [service], "views": {}}))
        options = Options(str(registry), str(here.write_kubeconfig(folder / "hub")), leader_elect=False)
        hub = await stack.enter_async_context(assemble(options))
        [url] = await stack.enter_async_context(listening(Listen(Where()), hub))
        running = asyncio.create_task(hub.run(stop))
        try:
            await until(lambda: any(hub.local.slices.values()), 30)
            urls.append(url)
            ready.set()
            await stop.wait()
        finally:
            stop.set()
            await running


@contextmanager
def served() -> Iterator[str]:
    """Run a hub in a thread; yields its URL."""
    urls: list[str] = []
    ready = threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        work = _serve(Path(folder), urls, ready, stop)
        thread = threading.Thread(target=lambda: loop.run_until_complete(work), name="hub")
        thread.start()
        try:
            assert ready.wait(60), "the hub does not start"
            yield urls[0]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(30)
            loop.close()


# --- bytes -----------------------------------------------------------------------------------------------


def _request(path: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
    return ("\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", "")) + body).encode()


REQUESTS: Final = (
    _request("/api/v1/status"),
    _request("/", "Accept-Language: de", "Cookie: a=b"),
    _request("/api/v1/services/edge/payments?offset=0&limit=5"),
    _request("/api/v1/why?subject=10.0.0.1", 'If-None-Match: "x"'),
    _request("/api/v1/history?service=edge/payments&limit=5"),
    _request("/metrics", "Accept: application/openmetrics-text; version=1.0.0; q=0.5, text/plain", "Accept-Encoding: gzip"),
    _request("/static/page.js") + _request("/clusters/eu", "Connection: close"),
    _request("/events", "Accept: text/event-stream", "Last-Event-ID: 5"),
    _request("/api/v1/endpoints?watch=false&gather=true"),
    _request("/api/v1/endpoints", "Expect: 100-continue", "Content-Length: 2", method="POST", body="{}"),
    _request("/openapi.json", "Transfer-Encoding: chunked", method="PUT", body="2\r\n{}\r\n0\r\n\r\n"),
    _request("/api/v1/status", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAA"),
)  # fmt: skip
TOKENS: Final = (
    b"", b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b":", b"?", b"%", b"%00", b"%ff", b"/..", b"//", b"\\", b"#", b"@",
    b"GET ", b"HEAD ", b"OPTIONS * ", b"CONNECT ", b" HTTP/1.0", b" HTTP/9.9", b"Host: evil\r\n", b"Host: [::1]\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n", b"Expect: 100-continue\r\n", b"Range: bytes=0-\r\n", b"\xff\xfe", b"A: " + b"x" * 9_000,
    b"x" * 20_000, b"?subject=" + b"9" * 600, b"offset=" + b"9" * 20, b"limit=-1", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"A: b\r\n" * 200, b"f" * 17 + b"\r\n", b"Accept: " + b"a/b;q=0.1," * 400,
)  # fmt: skip
ANSWER: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d) ")


TAIL: Final = b"\r\n\r\n" + _request("/nosuch", "Connection: close")
"""Sent after every input, so that most damaged requests have a complete head."""
PAUSE: Final = 0.3
"""Seconds of silence after which the listener is assumed to wait for more of the request."""


def _exchange(place: tuple[str, int], data: bytes) -> str:
    """Send a request and read the answer to its end; returns the status of the first answer, or "no answer"."""
    with contextlib.closing(socket.create_connection(place, timeout=PATIENCE)) as connection:
        with contextlib.suppress(OSError):  # the listener may have closed the connection already
            connection.sendall(data + TAIL)
        connection.settimeout(PAUSE)
        got = bytearray()
        over = time.monotonic() + PATIENCE
        while time.monotonic() < over:
            try:
                piece = connection.recv(1 << 16)
            except TimeoutError:  # the listener waits for more, or streams
                connection.settimeout(PATIENCE)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                continue
            except OSError:
                piece = b""
            if not piece:
                found = ANSWER.match(got)
                return found[1].decode() if found else "no answer"
            got += piece
            assert len(got) <= LARGEST_ANSWER
    raise AssertionError(f"no end within {PATIENCE:g} s")


def fuzz_bytes(url: str, times: int) -> Counter[str]:
    """Each damaged request is answered or refused, never with 500 or 503."""
    host, _, port = url.partition("://")[2].rpartition(":")
    outcomes = Counter[str]()

    @settings(_settings(EXAMPLES["bytes"] * times))
    @given(damaged(REQUESTS, TOKENS) | st.lists(st.sampled_from(REQUESTS), max_size=1))
    def fuzz(inputs: list[bytes]) -> None:
        for data in inputs:
            with cpu_limited():
                outcome = _exchange((host, int(port)), data)
            assert outcome not in ("500", "503"), data
            outcomes[outcome] += 1

    fuzz()
    assert {"200", "400", "404", "421"} <= outcomes.keys(), outcomes
    return outcomes


# --- the description -------------------------------------------------------------------------------------


def fuzz_openapi(url: str, times: int) -> Counter[str]:
    """Valid and invalid requests by the description; every answer must match the description."""
    with urlopen(f"{url}/openapi.json") as answer:
        described = json.load(answer)
    # A watch never ends, so it is tested in tests/unit/views; here this operation is called without it.
    for parameter in described["paths"]["/api/v1/endpoints"]["get"]["parameters"]:
        if parameter["name"] == "watch":
            parameter |= {"required": True, "schema": {"type": "boolean", "enum": [False]}}
    outcomes = Counter[str]()
    schema = schemathesis.openapi.from_dict(described)
    checks = CHECKS.get_by_names(list(CHECKED))  # the names exist only after a description was loaded
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    for operation in [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]:
        for mode in modes:
            if mode is modes[1] and (
                not list(operation.path_parameters) + list(operation.query) or "endpoints" in operation.path
            ):
                continue

            @settings(_settings(EXAMPLES["openapi"] * times))
            @given(operation.as_strategy(generation_mode=mode))
            def fuzz(case: Any) -> None:
                with cpu_limited():
                    got = case.call(base_url=url, timeout=PATIENCE)
                case.validate_response(got, checks=checks)
                outcomes[str(got.status_code)] += 1

            fuzz()
    assert {"200", "404"} <= outcomes.keys(), outcomes
    return outcomes


# --- both ------------------------------------------------------------------------------------------------


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip


slowest = 0.0


@contextmanager
def cpu_limited() -> Iterator[None]:
    """Limit the CPU time of one request: that of the whole process, this client included."""
    global slowest
    started = time.process_time()
    yield
    took = time.process_time() - started
    slowest = max(slowest, took)
    assert took <= SECONDS, f"{took:.1f} s of CPU time"


def main(times: int) -> None:
    """Fuzz the listener and print the results."""
    global slowest
    errors: list[str] = []
    noting = logging.Handler(logging.ERROR)
    noting.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(noting)
    with served() as url:
        urlopen(f"{url}/api/v1/status").close()  # imports the modules that answer requests
        for name, fuzz in (("listener-bytes", fuzz_bytes), ("listener-openapi", fuzz_openapi)):
            started, before, slowest = time.monotonic(), reset_peak(), 0.0
            outcomes = fuzz(url, times)
            grown = peak() - before
            with urlopen(f"{url}/api/v1/status", timeout=PATIENCE) as answer:
                assert json.load(answer)["clusters"], "the hub is not what it was"
            assert grown <= MEMORY, f"{grown >> 20} MiB"
            assert not errors, errors[:5]
            figures = {
                "target": name,
                "inputs": outcomes.total(),
                **dict(sorted(outcomes.items())),
                "slowest input [CPU s]": round(slowest, 3),
                "memory [MiB]": round(grown / 2**20, 1),
                "seconds": round(time.monotonic() - started, 1),
            }
            print(json.dumps(figures), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
