"""``hub cloud-controller``: the flags, by hand with wrong input; tests/integration/test_cloud_drop_in.py runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hub.app.controller import ControllerOptions
from hub.cli import cli
from hub.election.elector import Timing
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


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ControllerOptions]:
    """The options of the controllers that were started."""
    found: list[ControllerOptions] = []

    async def serve(options: ControllerOptions, *_: object) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr("hub.cli.cloud_controller._serve", serve)
    return found


def started(*flags: str) -> tuple[int, str]:
    """Exit code and stderr without ``--print-registry``."""
    result = CliRunner().invoke(cli, ["cloud-controller", "--cloud-provider=brightbox", *flags], env=ENVIRONMENT)
    return result.exit_code, result.stderr


def test_the_flags_of_the_process_reach_the_controller(served: list[ControllerOptions]) -> None:
    """The address, the Lease and its times, the pace, and how many Services are worked on at once."""
    code, stderr = started(
        "--master=https://10.0.0.1:6443",
        "--concurrent-service-syncs=4",
        "--kube-api-qps=5",
        "--kube-api-burst=6",
        "--leader-elect=false",
        "--leader-elect-lease-duration=1m",
        "--leader-elect-renew-deadline=40s",
        "--leader-elect-retry-period=1500ms",
        "--leader-elect-resource-name=mine",
        "--leader-elect-resource-namespace=ops",
    )
    assert code == 0, stderr
    [options] = served
    assert options.server == "https://10.0.0.1:6443"
    assert options.cloud.balancers == CloudBalancersSpec(concurrent=4)
    assert options.pace == (5.0, 6)
    assert (options.leader_elect, options.lease) == (False, ("ops", "mine"))
    assert options.timing == Timing(60, 40.0, 1.5)


def test_the_defaults_of_the_process_are_those_of_kubernetes(served: list[ControllerOptions]) -> None:
    """One Service at once, and the Lease and the times of Kubernetes' cloud controllers."""
    started()
    [options] = served
    assert options.cloud.balancers == CloudBalancersSpec(concurrent=1)
    assert (options.server, options.pace, options.timing) == ("", (20.0, 30), Timing())
    assert (options.leader_elect, options.lease) == (True, ("kube-system", "cloud-controller-manager"))


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--leader-elect-lease-duration=1500ms", "--leader-elect-lease-duration must be whole seconds, more than 2s"),
        ("--leader-elect-lease-duration=2h", "at most 1h"),
        (
            "--leader-elect-renew-deadline=1m",
            "--leader-elect-renew-deadline (60s) must be at least 2s less than --leader-elect-lease-duration (15s,",
        ),
        ("--leader-elect-retry-period=9s", "--leader-elect-retry-period (9s) must be more than 0 and, times 1.2,"),
        ("--leader-elect-resource-name=a/b", "--leader-elect-resource-name"),
        ("--leader-elect-resource-namespace=A", "--leader-elect-resource-namespace"),
    ],
)
def test_a_wrong_lease_is_refused(served: list[ControllerOptions], flag: str, said: str) -> None:
    """As by ``hub run``: nothing starts with other times than those that were asked for."""
    code, stderr = started(flag)
    assert (code, said in stderr, served) == (2, True, []), stderr


def test_what_a_registry_cannot_say_is_named() -> None:
    """Flags of the process that do not have their default, and the flag of a hub that another address needs."""
    _, _, stderr = printed("--cluster-name=a", "--node-monitor-period=7s")
    assert stderr == ""
    flags = ("--master=https://x", "--concurrent-service-syncs=2", "--leader-elect-lease-duration=20s")
    code, text, stderr = printed(*flags, BRIGHTBOX_API_URL="https://api.test")
    assert (code, loads(text.encode(), "f").problems) == (0, ())
    assert stderr.splitlines() == [
        "hub run needs --allow-api-host api.test",
        "clusters.yaml has no field for --master --concurrent-service-syncs --leader-elect-lease-duration: left out",
    ]


def test_intervals_have_a_floor() -> None:
    """Asking for all Nodes more often than every 30 s, or for single ones every 5 s, is not possible."""
    _, text, _ = printed("--node-status-update-frequency=10s", "--node-monitor-period=1s")
    nodes = yaml.safe_load(text)["clusters"][0]["cloud"]["nodes"]
    assert (nodes["refresh"], nodes["monitor"]) == ("30s", "5s")


def test_flags_without_an_effect_are_named_in_one_line() -> None:
    """Those of Kubernetes' cloud controllers that are given, with or without a value; the others are not named."""
    _, _, stderr = printed("--profiling", "--feature-gates=A=true", "--cluster-cidr=10.0.0.0/8")
    [line] = stderr.splitlines()
    assert line.partition("INFO ")[2] == (
        "hub.cli.cloud_controller: without effect here: --profiling --feature-gates --cluster-cidr"
    )
    assert printed()[2] == ""


@pytest.mark.parametrize(
    ("level", "expected"), [(["-v=4"], True), (["--v=10"], True), (["-v", "3"], False), ([], False)]
)
def test_four_is_the_level_that_logs_more(monkeypatch: pytest.MonkeyPatch, level: list[str], expected: bool) -> None:
    """As klog: -v 4 and more is debug."""
    verbose: list[bool] = []
    monkeypatch.setattr("hub.cli.logs.follow", lambda _, more: verbose.append(more))
    assert printed(*level)[0] == 0
    assert verbose == [expected]


def test_an_unknown_cloud_lists_those_that_are_installed() -> None:
    """A typing error gets a suggestion, everything else the list; a cloud that has no flags is told where it goes."""
    assert "no 'brightbx' is installed (did you mean brightbox?)" in printed("--cloud-provider=brightbx")[2]
    code, _, stderr = printed("--cloud-provider=external")
    assert code == 2
    assert "no 'external' is installed (" in stderr
    assert {"brightbox", "ionos"} <= set(stderr.partition("installed (")[2].partition(")")[0].split(", "))
    assert "only brightbox and ionos are possible here" in printed("--cloud-provider=inventory")[2]


def test_brightbox_has_no_cloud_config() -> None:
    """As the original: the file is not read, and a warning says so."""
    code, _, stderr = printed("--cloud-config=/etc/none")
    assert code == 0
    [line] = stderr.splitlines()
    assert line.partition("WARNING ")[2] == (
        "hub.cli.cloud_config: --cloud-config /etc/none is not read: Brightbox has no such file"
    )


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
