"""Cloud controllers of one cluster as processes with the flags of Kubernetes: the hub's, and goccm.

goccm (benchmarks/goccm) makes the original's requests. The variable ``BRIGHTBOX_CCM`` names the original's binary, if
there is one: it then takes goccm's place.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hub_provider_brightbox.testing import CLIENT, SECRET

from tests.support.apiserver import binaries
from tests.support.apiserver.process import Process

ROOT = Path(__file__).parents[2]
GOCCM = ROOT / "benchmarks" / "goccm"
HUB = (sys.executable, "-m", "hub", "cloud-controller")


def goccm() -> Path:
    """The path of goccm, which is built into the cache folder on first use.

    Raises:
        KitUnavailable: it cannot be built.
    """
    given = os.environ.get("BRIGHTBOX_CCM")
    return Path(given) if given else binaries.ensure_go_program(GOCCM)


def controller(name: str, program: tuple[str, ...], kubeconfig: Path, url: str, *flags: str) -> Process:
    """A cloud controller of the cluster ``eu`` at the cloud ``url``; its log lies next to the kubeconfig.

    Args:
        name: of the process and its log.
        program: :data:`HUB`, or the path of goccm.
        kubeconfig: access to the cluster.
        url: of the fake cloud.
        flags: more flags.
    """
    variables = {
        "BRIGHTBOX_CLIENT": CLIENT,
        "BRIGHTBOX_CLIENT_SECRET": SECRET,
        "BRIGHTBOX_API_URL": url,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    argv = ["/usr/bin/env", *(f"{key}={value}" for key, value in variables.items()), *program]
    argv += ["--cloud-provider=brightbox", "--cluster-name=eu", f"--kubeconfig={kubeconfig}", "--secure-port=0"]
    argv += ["--configure-cloud-routes=false", "--use-service-account-credentials=false", *flags]
    return Process(name, argv, kubeconfig.with_name(f"{name}.log"))
