"""The consumers: each arm has its own kube-proxy, on a host with its client."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

from benchmarks.traffic.client import TIMEOUT
from benchmarks.traffic.figures import RATE, Arm, Request
from benchmarks.traffic.net import Host
from tests.support.apiserver import binaries
from tests.support.apiserver.process import Process, as_flags
from tests.support.apiserver.server import ApiServer
from tests.support.hub import add_node

KUBE_PROXY = Path(__file__).parent / "kube-proxy"
NAMESPACE = "edge"
NODE_PORT = 30080


class BenchBroken(RuntimeError):
    """A part of the bench failed, so a row has no result. The message names the part and ends with its log."""


class KubeProxy:
    """kube-proxy, which sends requests from its host for the ClusterIP to nodes."""

    def __init__(self, arm: Arm, host: Host, cluster_ip: str, hub: ApiServer, kubeconfig: Path) -> None:
        self.arm = arm
        self.host = host
        self.target = (cluster_ip, 80)
        name = f"consumer-{arm}"
        add_node(hub, name, host.address)  # kube-proxy asks for its own Node
        flags = {
            "kubeconfig": kubeconfig,
            "proxy-mode": "nftables",
            "hostname-override": name,
            "conntrack-max-per-core": 0,  # these three are not a namespace's to set
            "conntrack-tcp-timeout-established": "0s",
            "conntrack-tcp-timeout-close-wait": "0s",
            "healthz-bind-address": "127.0.0.1:10256",
            "metrics-bind-address": "127.0.0.1:10249",
        }
        argv = host.command([str(binaries.ensure_go_program(KUBE_PROXY)), *as_flags(flags)])
        self.process = Process(f"kube-proxy of {arm}", argv, kubeconfig.parent / f"{name}.log")
        self.process.start()
        # Which address a request was sent to, by its source port, also if nothing ever answers.
        host.run(
            ["nft", "-f", "-"],
            "table ip traffic {\n"
            " set sent { type inet_service . ipv4_addr; flags dynamic; size 65535; }\n"
            " chain sending { type filter hook postrouting priority 150;\n"
            f"  tcp flags & (syn | ack) == syn tcp dport {NODE_PORT} update @sent {{ tcp sport . ip daddr }}; }}\n"
            "}\n",
        )

    def uses(self) -> str:
        """The addresses that it sends requests to, as a text that contains each with ``:`` and its port."""
        return self.host.run(["nft", "list", "ruleset", "ip"]).replace(" . ", ":")

    def forget(self) -> None:
        """Forget which address each request was sent to."""
        self.host.run(["nft", "flush", "set", "ip", "traffic", "sent"])

    def sent_to(self) -> dict[int, str]:
        """The address that each request was sent to, by its source port."""
        listed = json.loads(self.host.run(["nft", "-j", "list", "set", "ip", "traffic", "sent"]))
        pairs = [pair["concat"] for entry in listed["nftables"] for pair in entry.get("set", {}).get("elem", ())]
        return {int(port): address for port, address in pairs}


class Client:
    """A running client."""

    def __init__(self, consumer: KubeProxy, begin: float, seconds: float, offset: int) -> None:
        consumer.forget()
        self._consumer = consumer
        address, port = consumer.target
        options = {
            "source": consumer.host.address,
            "rate": RATE,
            "seconds": seconds,
            "begin": begin,
            "port-offset": offset,
        }
        argv = [sys.executable, "-m", "benchmarks.traffic.client", address, str(port), *as_flags(options)]
        argv = consumer.host.command(argv)
        self._log = consumer.process.log.with_suffix(".requests")
        self._process = Process(f"client of {consumer.arm}", argv, self._log)
        self._log.unlink(missing_ok=True)
        self._deadline = begin + seconds + TIMEOUT + 20
        self._expected = round(RATE * seconds)
        self._process.start()

    def result(self) -> list[Request]:
        """Wait for the end, and return the requests.

        Raises:
            BenchBroken: the client did not make all its requests.
        """
        while self._process.alive and time.monotonic() < self._deadline:
            time.sleep(0.05)
        lines = []
        with contextlib.suppress(ValueError):
            lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        if self._process.alive or len(lines) != self._expected:
            self._process.kill()
            raise BenchBroken(
                f"{self._process.name}: {len(lines)} requests, not {self._expected}\n{tail(self._process)}"
            )
        sent_to = self._consumer.sent_to()
        return [Request(at, took, name, error, sent_to.get(port, "")) for port, at, took, name, error in lines]

    def kill(self) -> None:
        """End it early."""
        self._process.kill()


def tail(process: Process) -> str:
    """The end of a process's log, with its path."""
    return f"--- {process.log}\n{process.log_tail()}"
