"""``hub demo`` as a newcomer runs it: a process of its own that needs only the package."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from tests.support.waiting import eventually

Demo = subprocess.Popen[str]
Start = Callable[..., Demo]
SUMMARY = "demo: 3 clusters, 21 nodes, 4 services: "


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``hub demo`` without a terminal, with its files in ``tmp_path``."""
    running: list[Demo] = []

    def demo(*arguments: str) -> Demo:
        process = subprocess.Popen(
            [sys.executable, "-m", "hub", "demo", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        )
        running.append(process)
        return process

    yield demo
    for process in running:
        process.kill()
        process.communicate()


def peers(pid: int) -> set[IPv4Address | IPv6Address]:
    """The addresses that a process is connected or connecting to, from the kernel's socket tables."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address = fields[2].partition(":")[0]
            if fields[9] in inodes and set(address) != {"0"}:
                words = (bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
                found.add(ip_address(b"".join(words)))
    return found


def test_demo_ends_after_its_duration_with_a_summary(start: Start, tmp_path: Path) -> None:
    """Without a terminal, ``hub demo --for 15s`` prints plain lines and a summary, exits 0, and uses only loopback."""
    demo = start("--for", "15s")
    seen: set[IPv4Address | IPv6Address] = set()
    while demo.poll() is None:
        with suppress(FileNotFoundError):
            seen |= peers(demo.pid)
        time.sleep(0.1)
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    lines = out.splitlines()
    assert lines[-1].startswith(SUMMARY)
    assert lines[-1].endswith(", 0 endpoints lost; published = expected")
    assert "\x1b" not in out
    # The number of endpoints depends on how far the hub has got, which is less on a busy machine.
    assert re.search(r"payments-us: its API server is gone → unknown is not empty: its 1\d endpoints stay", out)
    assert re.search(r"payments-us: its API server is back → \d+ endpoints? into", out)
    assert seen == {IPv4Address("127.0.0.1")}
    folder = next(tmp_path.glob("hub-demo-*"))
    assert str(folder) in lines[0]
    assert (folder / "clusters.yaml").exists()
    assert "Unreachable" in (folder / "hub.log").read_text()


def test_demo_prints_a_command_that_works(start: Start, tmp_path: Path) -> None:
    """The printed command, run in the demo's folder, shows the addresses of the simulated cloud."""
    demo = start("--for", "60s")
    assert demo.stdout is not None
    said = [demo.stdout.readline() for _ in range(4)]
    assert "start: 21 nodes" in said[3]
    url = said[2].partition("in a browser: ")[2].strip()
    with urllib.request.urlopen(url, timeout=20) as page:
        assert b"payments-us" in page.read()
    command = said[1].partition("try there meanwhile: ")[2].split()
    folder = next(tmp_path.glob("hub-demo-*"))
    tried = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    assert re.search(r"eu-1 +yes +10\.7\.0\.\d+ +10\.7\.0\.\d+ +not probed", tried.stdout), tried


def test_demo_ends_cleanly_when_interrupted(start: Start, tmp_path: Path) -> None:
    """Ctrl-C ends an unlimited demo with its summary and exit code 0, without a traceback."""
    demo = start()
    eventually(lambda: " leads" in "".join(log.read_text() for log in tmp_path.glob("hub-demo-*/hub.log")), timeout=20)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (0, "")
    assert out.splitlines()[-1].startswith(SUMMARY)


def test_demo_draws_a_table_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the demo draws a live table and prints the summary below it."""
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (40, 120))
    with subprocess.Popen(
        [sys.executable, "-m", "hub", "demo", "--for", "3s"],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
    ) as demo:
        os.close(child)
        shown = b""
        with suppress(OSError):  # reading a pseudo-terminal fails once the process at its other end has exited
            while more := os.read(parent, 65536):
                shown += more
        os.close(parent)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert demo.returncode == 0, text
    assert re.search(r"edge/payments +21/21 +7/7 +7/7 +7/7", text)
    assert re.search(r"payments-us +Ready", text)
    assert text.rstrip().splitlines()[-1].startswith(SUMMARY)


def test_demo_of_allocations_attaches_every_address(start: Start) -> None:
    """``hub demo --allocations`` attaches the three addresses to nodes of their own, says so, and exits 0."""
    out, err = start("--allocations", "--for", "8s").communicate(timeout=90)
    assert "every address is on a Ready node of its own, and the labels follow" in out, out + err
    assert all(f"198.18.0.{number} Attached on node-" in out for number in (1, 2, 3)), out


@pytest.mark.nightly
def test_demo_of_allocations_follows_its_whole_script(start: Start) -> None:
    """A drain, a failing node, a deleted machine and an outage of the cloud leave every address where it may be."""
    out, err = start("--allocations").communicate(timeout=240)
    assert "every address is on a Ready node of its own, and the labels follow" in out, out + err
    moves = [cause for cause in ("(Drained)", "(NotReady)", "(Free)") if cause in out]
    assert len(moves) == 3, out
    assert "StatefulSet edge/gateway still runs there" in out, out
    outage = out.partition("the cloud fails")[2].partition("the cloud answers again")[0]
    assert "Detaching" not in outage, outage
