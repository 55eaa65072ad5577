"""The consumers: kube-proxy, and Envoy that Contour configures. Each arm has its own, on a host with its client."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Protocol

from benchmarks.traffic.client import TIMEOUT
from benchmarks.traffic.figures import RATE, Arm, Request
from benchmarks.traffic.net import GATEWAY, Host
from tests.support.api import Object
from tests.support.apiserver import binaries
from tests.support.apiserver.process import Process, as_flags
from tests.support.apiserver.server import ApiServer
from tests.support.hub import add_node
from tests.support.ports import free_port

KUBE_PROXY = Path(__file__).parent / "kube-proxy"
CONTOUR = Path(__file__).parent / "contour"
CONTOUR_PACKAGE = "github.com/projectcontour/contour/cmd/contour"
NAMESPACE = "edge"
NODE_PORT = 30080
HUB_ZONE = "hub-0"
"""The zone of the consumers' Nodes."""
ENVOY_PORT, ADMIN_PORT = 8080, 9001
"""Contour lets Envoy listen on the first."""


class BenchBroken(RuntimeError):
    """A part of the bench failed, so a row has no result. The message names the part and ends with its log."""


class Consumer(Protocol):
    """What sends an arm's requests to nodes.

    Attributes:
        host: the host on which it and its client run.
        process: it itself.
        target: the address and port that the client uses.
    """

    @property
    def arm(self) -> Arm: ...
    @property
    def host(self) -> Host: ...
    @property
    def process(self) -> Process: ...
    @property
    def target(self) -> tuple[str, int]: ...

    def uses(self) -> str:
        """The addresses that it sends requests to, as a text that contains each with ``:`` and its port."""
        ...

    def forget(self) -> None:
        """Forget which address each request was sent to."""
        ...

    def sent_to(self) -> dict[int, str]:
        """The address that each request was sent to, by its source port, as far as known."""
        ...


class KubeProxy:
    """kube-proxy, which sends requests from its host for the ClusterIP to nodes."""

    def __init__(self, arm: Arm, host: Host, cluster_ip: str, hub: ApiServer, kubeconfig: Path) -> None:
        self.arm = arm
        self.host = host
        self.target = (cluster_ip, 80)
        name = f"consumer-{arm}"
        add_node(hub, name, host.address, zone=HUB_ZONE)  # kube-proxy asks for its own Node
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
        return self.host.run(["nft", "list", "ruleset", "ip"]).replace(" . ", ":")

    def forget(self) -> None:
        self.host.run(["nft", "flush", "set", "ip", "traffic", "sent"])

    def sent_to(self) -> dict[int, str]:
        listed = json.loads(self.host.run(["nft", "-j", "list", "set", "ip", "traffic", "sent"]))
        pairs = [pair["concat"] for entry in listed["nftables"] for pair in entry.get("set", {}).get("elem", ())]
        return {int(port): address for port, address in pairs}


class Envoy:
    """Envoy, configured by Contour, which has an Ingress for the arm's Service."""

    def __init__(self, arm: Arm, host: Host, hub: ApiServer, contour: Contour) -> None:
        self.arm = arm
        self.host = host
        self.target = (host.address, ENVOY_PORT)
        backend = {"service": {"name": arm, "port": {"number": 80}}}
        paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
        spec = {"rules": [{"host": f"{arm}.test", "http": {"paths": paths}}]}
        path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/ingresses"
        hub.api.post(path, {"metadata": {"name": arm}, "spec": spec})
        file = contour.bootstrap(host)
        flags = {"config-path": file, "service-cluster": "contour", "service-node": arm, "log-level": "warn"}
        # Envoy refuses --name=value.
        pairs = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
        argv = [str(binaries.ensure_envoy()), *pairs, "--concurrency", "1", "--disable-hot-restart"]
        self.process = Process(f"Envoy of {arm}", host.command(argv), file.with_suffix(".log"))
        self.process.start()

    def uses(self) -> str:
        url = f"http://{self.host.address}:{ADMIN_PORT}/clusters"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            lines = str(answer.read(), "utf-8").splitlines()
            return "\n".join(line for line in lines if line.startswith(f"{NAMESPACE}/{self.arm}/"))
        return ""  # it does not listen yet

    def forget(self) -> None:
        """Nothing to do: Envoy uses its own connections, so only answers say where a request went."""

    def sent_to(self) -> dict[int, str]:
        return {}


class Contour:
    """Contour for all arms."""

    def __init__(self, hub: ApiServer, folder: Path, kubeconfig: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._program = str(binaries.ensure_go_program(CONTOUR, package=CONTOUR_PACKAGE))
        for kind, plural, version in KINDS:
            hub.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind, plural, version))
        flags = {
            "kubeconfig": kubeconfig,
            "xds-address": "0.0.0.0",
            "xds-port": self._port,
            "http-port": free_port(),
            "health-port": free_port(),
            "debug-http-port": free_port(),
        }
        argv = [self._program, "serve", "--insecure", "--disable-leader-election", *as_flags(flags)]
        self.process = Process("Contour", argv, folder / "contour.log")
        self.process.start()

    def bootstrap(self, host: Host) -> Path:
        """The configuration with which Envoy on a host finds Contour."""
        file = self._folder / f"envoy-{host.address}.json"
        flags = {"xds-address": GATEWAY, "xds-port": self._port}
        host.run([self._program, "bootstrap", str(file), *as_flags(flags)])
        content = json.loads(file.read_text())
        content["admin"]["address"] = {"socket_address": {"address": host.address, "port_value": ADMIN_PORT}}
        file.write_text(json.dumps(content))
        return file


KINDS = (
    ("HTTPProxy", "httpproxies", "v1"),
    ("TLSCertificateDelegation", "tlscertificatedelegations", "v1"),
    ("ExtensionService", "extensionservices", "v1alpha1"),
)
"""Kinds that Contour watches; none of their objects is needed."""


def definition(kind: str, plural: str, version: str) -> Object:
    """A CustomResourceDefinition of Contour without a schema."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {"name": f"{plural}.projectcontour.io"},
        "spec": {
            "group": "projectcontour.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


class Client:
    """A running client."""

    def __init__(self, consumer: Consumer, begin: float, seconds: float, offset: int) -> None:
        consumer.forget()
        self._consumer = consumer
        address, port = consumer.target
        options = {
            "authority": f"{consumer.arm}.test",
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
