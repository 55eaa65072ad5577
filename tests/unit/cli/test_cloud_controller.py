"""``hub cloud-controller``: the flags, by hand with wrong input; tests/integration/test_cloud_drop_in.py runs it."""

from __future__ import annotations

from pathlib import Path

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


DATACENTER = "10000000-0000-4000-8000-000000000001"


def mounted(folder: Path, **files: str) -> str:
    """``--cloud-config`` of a folder as Kubernetes mounts a Secret, with further files."""
    (folder / "..data").mkdir()
    for name, text in {DATACENTER: '{"tokens": ["t0p-secret", "old"]}', **files}.items():
        (folder / "..data" / name).write_text(text)
        (folder / name).symlink_to(Path("..data") / name)
    return f"--cloud-config={folder}"


def ionos(*flags: str, **variables: str) -> tuple[int, str, str]:
    """As :func:`printed`, on IONOS."""
    return printed("--cloud-provider=ionos", *flags, BRIGHTBOX_CLIENT="", **variables)


def test_ionos_takes_its_data_centers_from_a_folder(tmp_path: Path) -> None:
    """Each file named by a UUID is a data center; the registry refers to the token's file, and never has the token."""
    other = DATACENTER.replace("1", "2")
    flag = mounted(tmp_path, **{other: '{"tokens": ["t0p-secret"]}', "README": "no data center"})
    code, text, stderr = ionos(flag, "--private", "--cluster-id=prod", IONOS_API_URL="http://127.0.0.1:1")
    assert (code, "t0p-secret" in text + stderr) == (0, False), stderr
    assert loads(text.encode(), "f").problems == ()
    [entry] = yaml.safe_load(text)["clusters"]
    assert entry["cloud"]["provider"]["config"] == {
        "datacenters": [DATACENTER, other],
        "token": {"file": DATACENTER},
        "private": True,
        "apiUrl": "http://127.0.0.1:1",
    }
    assert (entry["cloud"]["clusterName"], entry["cloud"]["nodes"]["monitor"]) == ("prod", "20s")


def test_a_given_monitor_period_counts_on_ionos_too(tmp_path: Path) -> None:
    """Only the default differs."""
    _, text, _ = ionos(mounted(tmp_path), "--node-monitor-period=5s")
    assert yaml.safe_load(text)["clusters"][0]["cloud"]["nodes"]["monitor"] == "5s"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({DATACENTER: "t0p-secret"}, f'{DATACENTER}: must be {{"tokens"'),
        ({DATACENTER: '{"tokens": []}'}, "with a token"),
        ({DATACENTER: '{"tokens": ["t0p-secret"]}' + " " * 65_536}, "with a token"),
        ({DATACENTER.replace("1", "2"): '{"tokens": ["t0p-secret-2"]}'}, "different tokens; use one token"),
    ],
)
def test_a_wrong_file_of_ionos_is_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    """The message names the file and what it must be; the token is not in it."""
    code, _, stderr = ionos(mounted(tmp_path, **files))
    assert (code, said in stderr, "t0p-secret" in stderr) == (3, True, False), stderr


def test_ionos_needs_its_folder(tmp_path: Path) -> None:
    """Without the flag, without the folder and without a data center: each message says what is needed."""
    assert "a folder with a file for each data center" in ionos()[2]
    assert "No such file or directory" in ionos(f"--cloud-config={tmp_path / 'none'}")[2]
    assert "no file is named by the UUID" in ionos(f"--cloud-config={tmp_path}")[2]
    assert "--private is for ionos only" in printed("--private")[2]
