"""``hub cloud-controller``: the flags, by hand with wrong input; tests/integration/test_cloud_drop_in.py runs it."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from hub.cli import cli
from hub.registry.load import loads
from hub.registry.spec import CloudBalancersSpec, CloudNodesSpec

ENVIRONMENT = {"BRIGHTBOX_CLIENT": "cli-1", "BRIGHTBOX_CLIENT_SECRET": "s", "BRIGHTBOX_API_URL": ""}


def printed(*flags: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr with ``--print-registry``."""
    arguments = ["cloud-controller", "--cloud-provider=brightbox", "--print-registry", *flags]
    result = CliRunner().invoke(cli, arguments, env={**ENVIRONMENT, **variables})
    return result.exit_code, result.stdout, result.stderr


def test_the_printed_registry_means_the_same() -> None:
    """It loads without a problem, with the flags' values; the floors of the intervals apply."""
    code, text, _ = printed(
        "--cluster-name=My_Cluster",
        "--kubeconfig=/etc/x",
        "--node-monitor-period=1s",
        BRIGHTBOX_API_URL="http://127.0.0.1:1",
    )
    assert code == 0
    loaded = loads(text.encode(), "f")
    assert loaded.problems == ()
    cloud = loaded.registry.clusters["my-cluster"].cloud
    assert cloud is not None
    assert cloud.cluster_name == "My_Cluster"
    assert cloud.nodes == CloudNodesSpec(monitor=5.0)
    assert cloud.balancers == CloudBalancersSpec()
    assert yaml.safe_load(text)["clusters"][0]["cloud"]["provider"]["config"]["url"] == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("controllers", "nodes", "balancers"),
    [
        ("*", True, True),
        ("*,-service", True, False),
        ("service-lb-controller", False, True),
        ("cloud-node,route", True, False),
        ("*,-cloud-node,-cloud-node-lifecycle", False, True),
    ],
)
def test_controllers_choose_the_parts(controllers: str, nodes: bool, balancers: bool) -> None:
    """Names and aliases of Kubernetes' controllers; a minus takes one away."""
    _, text, _ = printed(f"--controllers={controllers}")
    cloud = yaml.safe_load(text)["clusters"][0]["cloud"]
    assert (cloud["nodes"] != "off", cloud.get("loadBalancers") != "off") == (nodes, balancers)


@pytest.mark.parametrize(
    ("flags", "variables", "code", "said"),
    [
        (["--controllers=servce"], {}, 2, "did you mean service?"),
        (["--allocate-node-cidrs=true"], {}, 2, "allocates no networks"),
        (["--webhooks=x"], {}, 2, "serves no webhooks"),
        (["--leader-elect-resource-lock=endpoints"], {}, 2, "only leases is"),
        (["--cluster-name=a", "--cluster-id=b"], {}, 2, "name two clusters"),
        (["--node-monitor-period=5"], {}, 2, "'5' is not a duration"),
        (["--leader-elct"], {}, 2, "did you mean --leader-elect?"),
        ([], {"BRIGHTBOX_CLIENT": ""}, 3, "BRIGHTBOX_CLIENT must be set"),
        ([], {"BRIGHTBOX_USER_NAME": "me"}, 3, "use an API client instead"),
    ],
)
def test_wrong_input_is_named(flags: list[str], variables: dict[str, str], code: int, said: str) -> None:
    """The message names the flag or the variable, and what to do."""
    found, _, stderr = printed(*flags, **variables)
    assert (found, said in stderr) == (code, True), stderr


def test_a_secret_never_shows() -> None:
    """The printed registry refers to the variables, and does not have their values."""
    _, text, stderr = printed("-v=4", BRIGHTBOX_CLIENT_SECRET="very-secret")
    assert "very-secret" not in text + stderr


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--bind-address=0.0.0.0"], 2, "without --tls-cert-file and --tls-private-key-file only loopback is possible"),
        (["--bind-address=::"], 2, "without --tls-cert-file and --tls-private-key-file only loopback is possible"),
        (["--bind-address=cp.example.com"], 2, "only loopback is possible"),
        (["--tls-cert-file=a"], 2, "--tls-cert-file and --tls-private-key-file belong together"),
        (["--tls-cert-file=/a", "--tls-private-key-file=/b"], 3, "--tls-cert-file /a: cannot be read"),
        (["--kube-api-qps=0"], 2, "--kube-api-qps"),
        (["--kube-api-burst=0"], 2, "--kube-api-burst"),
    ],
)
def test_a_listener_that_is_not_safe_is_refused(flags: list[str], code: int, said: str) -> None:
    """Without --print-registry the listener is checked before anything starts; the message names the flags."""
    arguments = ["cloud-controller", "--cloud-provider=brightbox", *flags]
    result = CliRunner().invoke(cli, arguments, env=ENVIRONMENT)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
