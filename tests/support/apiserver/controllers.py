"""kube-controller-manager for an API server: it collects garbage, deletes namespaces and mirrors Endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tests.support.apiserver import binaries
from tests.support.apiserver.process import Process, as_flags
from tests.support.apiserver.server import ApiServer

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "endpointslice-mirroring-controller",
    "endpointslice-controller",
    "endpoints-controller",
)


class ControllerManager:
    """A kube-controller-manager for a server; a context manager.

    The node lifecycle controller runs only if requested, as it would mark nodes without kubelets as not Ready.
    """

    def __init__(self, server: ApiServer, controllers: Sequence[str] = CONTROLLERS) -> None:
        program = binaries.ensure("kube-controller-manager")["kube-controller-manager"]
        flags = {
            "kubeconfig": server.kubeconfig(server.folder / "controller-manager.kubeconfig"),
            "controllers": ",".join(controllers),
            "leader-elect": "false",
            "secure-port": 0,
            "service-account-private-key-file": server.folder / "accounts.key",
        }
        log = server.folder / "kube-controller-manager.log"
        self.process = Process(f"kube-controller-manager of {server.name}", [str(program), *as_flags(flags)], log)

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
