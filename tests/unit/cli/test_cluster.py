"""`hub cluster`: its usage, and the imports it keeps out of the running hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hub.cli import cli

ROOT = Path(__file__).parents[3]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as end:
        cli.main(args=["cluster", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("eu",), "Missing option '--from-kubeconfig', '--rotate' or '--print-manifests'"),
        (("eu", "--print-manifests", "--token-lifetime", "5m"), "API servers do not issue tokens for less than 10m"),
        (("eu", "--print-manifests", "--allow-services", "a,B"), "DNS label"),
        (("eu", "--allowed-cidr", "10.0.0.1/8", "--rotate"), "10.0.0.0/8"),
        (("eu", "--from-kubeconfig", "x", "--provider", "No"), "provider"),
        (("eu", "--print-manifests", "--apply"), "--print-manifests only prints, and cannot be combined with --apply"),
        (("eu", "--print-manifests", "--rotate"), "cannot be combined with --rotate"),
        (("eu", "--print-manifests", "--allow-evictions", "edge"), "--allow-evictions needs --allow-allocations"),
        (("eu", "--print-manifests", "--without-policy"), "--cloud-provider and --without-policy need --cloud"),
        (("eu", "--print-manifests", "--cloud=node"), "'node' is no part of a cloud controller (did you mean nodes?)"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    """Wrong usage is one line and exit code 2, before any file is read."""
    code, out, err = said(capsys, "add", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("Error: ")


def test_manifests_are_printed_without_any_access(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--print-manifests contacts no cluster and prints nothing on stderr."""
    monkeypatch.setenv("KUBECONFIG", "/nosuch")
    rights = ("--allow-services", "edge, ingress", "--allow-allocations", "--allow-evictions", "shop")
    code, out, err = said(capsys, "add", "eu", "--print-manifests", *rights)
    assert (code, err) == (0, "")
    assert "namespace: ingress" in out
    assert "namespace: shop" in out
    assert "name: endpointslice-hub-allocations" in out


@pytest.mark.parametrize(
    ("options", "kinds", "allowed"),
    [
        ((), ("nodes", "services"), ("brightbox:/", "ionos:/")),
        (("--cloud-provider", "brightbox"), ("nodes", "services"), ("brightbox:/",)),
        (("--without-policy",), (), ()),
    ],
    ids=["all clouds", "one cloud", "no policy"],
)
def test_policies_name_the_provider_ids(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], kinds: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    """The policy for Nodes has the provider IDs of the clouds that are installed, or of the one that is named."""
    code, out, _ = said(capsys, "add", "eu", "--print-manifests", "--cloud", *options)
    policies = [each for each in yaml.safe_load_all(out) if each["kind"] == "ValidatingAdmissionPolicy"]
    assert (code, [each["metadata"]["name"] for each in policies]) == (
        0,
        [f"endpointslice-hub-cloud-{kind}" for kind in kinds],
    )
    ours = [each["expression"] for policy in policies for each in policy["spec"]["variables"] if each["name"] == "ours"]
    found = {scheme for scheme in ("brightbox:/", "ionos:/") for text in ours if scheme in text}
    assert found == {*allowed}


def test_a_provider_that_is_no_cloud_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """--cloud-provider takes an installed cloud only."""
    code, _, err = said(capsys, "add", "eu", "--print-manifests", "--cloud", "--cloud-provider", "inventory")
    assert (code, "provider 'inventory' is no cloud controller" in err) == (3, True)


@pytest.mark.parametrize(
    "program",
    [
        "import hub.app.hub, hub.cli.run, hub.report.probes, hub.report.metrics, hub.onboarding.renewal",
        "import hub.cli.check, hub.cli.checking, hub.cli.online; hub.cli.checking.examine('clusters.example.yaml')",
        "from hub.cli import cli; cli.main(args=['cluster', 'add', 'eu', '--print-manifests'], standalone_mode=False)",
    ],
    ids=["run", "check", "print-manifests"],
)
def test_the_kubernetes_package_stays_out(program: str) -> None:
    """Only `hub cluster` at work in a cluster imports the kubernetes package, which takes a second and 80 MB."""
    ask = "import atexit, sys; atexit.register(lambda: print('kubernetes' in sys.modules, file=sys.stderr)); "
    done = subprocess.run(
        [sys.executable, "-c", ask + program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, ["False"])
