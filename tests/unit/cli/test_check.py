"""``hub check``, and the parts of ``--online`` that need no cluster."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import hub.cli
from hub.cli import checking, cli, limits

ROOT = Path(hub.cli.__file__).parents[2]

GOOD = """\
version: 1
clusters:
  - name: eu
    kubeconfig: {path: eu}
    allowedCIDRs: [10.7.0.0/16]
    provider: {name: node-addresses}
  - name: us
    kubeconfig: {path: us}
    allowedCIDRs: [10.8.0.0/16]
    provider: {name: node-addresses, config: {types: [ExternalIP]}}
services:
  - {name: payments, namespace: edge, sources: [{cluster: eu}, {cluster: us}]}
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(text: str) -> Result:
    """Check a file with this content; its name is f.yaml."""
    Path("f.yaml").write_text(text)
    return CliRunner().invoke(cli, ["check", "f.yaml"])


def test_check_of_a_valid_file_prints_its_numbers() -> None:
    """A valid file is one line with the numbers of clusters and Services, exit code 0."""
    result = check(GOOD)

    assert (result.output, result.exit_code) == ("f.yaml: ok; 2 clusters, 1 service\n", 0)


def test_check_reads_stdin() -> None:
    """With - the registry is read from stdin, and messages say so."""
    result = CliRunner().invoke(cli, ["check", "-"], input=GOOD)
    assert (result.output, result.exit_code) == ("stdin: ok; 2 clusters, 1 service\n", 0)

    result = CliRunner().invoke(cli, ["check", "-"], input=GOOD.replace("10.7.0.0/16", "10.7.0.1/16"))
    assert result.stdout.startswith("stdin:5:20: clusters[0].allowedCIDRs[0]: ")
    assert result.exit_code == 1

    result = CliRunner().invoke(cli, ["check", "-"], input="#" * (4 << 20) + "\n")
    assert (result.stderr, result.exit_code) == (
        "Error: stdin: is too large: 4,194,305 bytes, at most 4,194,304 are read\n",
        3,
    )


def test_check_takes_the_file_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the file is that of the hub's Pod; an argument wins."""
    Path("pod.yaml").write_text(GOOD)
    monkeypatch.setenv("ENDPOINTSLICE_HUB_REGISTRY", "pod.yaml")

    assert CliRunner().invoke(cli, ["check"]).output == "pod.yaml: ok; 2 clusters, 1 service\n"
    assert check(GOOD).output == "f.yaml: ok; 2 clusters, 1 service\n"


def test_check_prints_one_problem_per_line_with_its_place() -> None:
    """All problems are listed with their places, then a summary; exit code 1."""
    result = check(GOOD.replace("10.7.0.0/16", "10.7.0.1/16").replace("cluster: us", "cluster: uk"))

    lines = result.stdout.splitlines()
    assert lines[0].startswith("f.yaml:5:20: clusters[0].allowedCIDRs[0]: has bits set outside the mask")
    assert lines[1].startswith("f.yaml:12:")
    assert lines[2] == "f.yaml: 2 problems; 2 clusters, 1 service"
    assert (len(lines), result.exit_code) == (3, 1)


def test_check_reports_an_unusable_file() -> None:
    """A problem that makes the whole file unusable is reported as such."""
    result = check("version: 2\n")

    said = "f.yaml: 1 problem; the file cannot be used, and its providers were not checked"
    assert result.stdout.splitlines()[-1] == said
    assert result.exit_code == 1


@pytest.mark.parametrize("path", ["nosuch.yaml", "."])
def test_check_of_an_unreadable_file_is_an_error(path: str) -> None:
    """A file that cannot be read is one line on stderr, exit code 3."""
    result = CliRunner().invoke(cli, ["check", path])

    assert result.stderr.startswith(f"Error: {path}: ")
    assert (result.stdout, result.exit_code) == ("", 3)


def test_check_names_providers_that_are_not_installed() -> None:
    """A provider that is not installed is a problem, with the closest installed name."""
    result = check(GOOD.replace("node-addresses}", "node-adresses}"))

    assert result.stdout.splitlines()[0] == (
        "f.yaml:6:22: clusters[0].provider.name: provider 'node-adresses': no installed distribution provides it "
        "(did you mean node-addresses?)"
    )
    assert result.exit_code == 1


def test_check_validates_provider_configuration() -> None:
    """An unknown key is reported at the key, a wrong value at the value."""
    result = check(GOOD.replace("types: [ExternalIP]", "typs: [x], families: [IPv5]"))

    found = [line.split(": ")[:2] for line in result.stdout.splitlines()[:-1]]
    assert ["f.yaml:10:47", "clusters[1].provider.config.typs"] in found
    assert ["f.yaml:10:69", "clusters[1].provider.config.families[0]"] in found


def test_check_validates_the_provider_of_a_source() -> None:
    """A provider of a source is checked like a provider of a cluster."""
    result = check(GOOD.replace("{cluster: us}", "{cluster: us, provider: {name: nosuch}}"))

    assert "services[0].sources[1].provider.name: provider 'nosuch'" in result.stdout


CLOUDS = """\
version: 1
allocations:
  clouds:
    - {name: good, provider: aws, config: {region: eu-west-1, credentials: {default: true}}, addresses: [3.0.0.0/8]}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("provider: aws", "provider: awz", "4:30: allocations.clouds[0].provider: provider 'awz': no installed"),
        (
            "provider: aws",
            "provider: node-addresses",
            "4:30: allocations.clouds[0].provider: provider node-addresses attaches no addresses (hub providers",
        ),
        ("region:", "regin:", "4:44: allocations.clouds[0].config.regin: unknown key (did you mean region?)"),
        ("eu-west-1", "5", "4:52: allocations.clouds[0].config.region: "),
    ],
)
def test_check_validates_accounts(old: str, new: str, problem: str) -> None:
    """The provider of an account must attach addresses, and accept the account's configuration."""
    assert check(CLOUDS).exit_code == 0, check(CLOUDS).stdout
    result = check(CLOUDS.replace(old, new))
    assert (result.exit_code, problem in result.stdout) == (1, True), result.stdout


CLOUD = """\
version: 1
clusters:
  - name: eu
    kubeconfig: {path: eu}
    cloud:
      provider: {name: brightbox, config: {client: {env: A}, secret: {env: B}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("brightbox", "brightbix", "6:24: clusters[0].cloud.provider.name: provider 'brightbix': no installed"),
        (
            "brightbox",
            "inventory",
            "6:24: clusters[0].cloud.provider.name: provider 'inventory' is no cloud controller",
        ),
        ("secret:", "secrat:", "clusters[0].cloud.provider.config.secrat: unknown key (did you mean secret?)"),
    ],
)
def test_check_validates_clouds(old: str, new: str, problem: str) -> None:
    """The provider of a cloud must be a cloud controller, and accept the configuration."""
    assert check(CLOUD).output == "f.yaml: ok; 1 cluster, 0 services, 1 cloud\n"
    result = check(CLOUD.replace(old, new))
    assert (result.exit_code, problem in result.stdout) == (1, True), result.stdout


def test_check_names_a_part_that_a_cloud_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud without load balancers needs ``loadBalancers: off``."""
    real = checking.cloud_type
    monkeypatch.setattr(checking, "cloud_type", lambda kind: replace(real(kind), parts=frozenset(("nodes",))))
    result = check(CLOUD)
    assert "cloud brightbox has no load balancers (write cloud.loadBalancers: off)" in result.stdout
    assert check(CLOUD + "      loadBalancers: off\n").exit_code == 0


def test_check_counts_accounts() -> None:
    """The summary has the number of accounts, with those that are broken."""
    assert check(CLOUDS).output == "f.yaml: ok; 0 clusters, 0 services, 1 account\n"


def test_check_finds_a_cluster_whose_provider_only_attaches_addresses() -> None:
    """A provider that resolves no nodes cannot be the provider of a cluster."""
    result = check(GOOD.replace("{name: node-addresses}", "{name: aws}"))
    assert "clusters[0].provider.name: provider aws resolves no nodes: it attaches addresses" in result.stdout


def test_check_finds_a_node_provider_without_nodes() -> None:
    """A provider that resolves Nodes is a problem in a cluster whose Nodes are not followed."""
    result = check(GOOD.replace("    kubeconfig: {path: us}\n", ""))

    assert (
        "clusters[1].provider.name: provider node-addresses finds addresses of Nodes, and cluster us has no kubeconfig "
        "(give the cluster a kubeconfig)"
    ) in result.stdout
    assert result.exit_code == 1


SELECTED = """\
version: 1
clusters:
  - {name: eu, kubeconfig: {path: eu}, labels: {tier: gold, nodes: "yes"}, allowedCIDRs: [10.7.0.0/16]}
  - {name: old, labels: {tier: gold}, allowedCIDRs: [10.9.0.0/24], provider: {name: inventory, config: {file: a.json}}}
  - {name: new, labels: {tier: gold}, allowedCIDRs: [10.9.1.0/24], provider: {name: inventory, config: {file: b.json}}}
services:
  - name: payments
    namespace: edge
    sources:
"""
BY_LABEL = "      - {clusterSelector: {tier: gold}, provider: {name: node-addresses}}\n"


def test_check_finds_a_node_provider_without_nodes_behind_a_selector() -> None:
    """With a selector, the first selected cluster without Nodes is named, once, at the source's provider."""
    result = check(SELECTED + BY_LABEL)

    said = "provider node-addresses finds addresses of Nodes, and cluster old has no kubeconfig"
    assert result.stdout.splitlines() == [
        f"f.yaml:10:58: services[0].sources[0].provider.name: {said} (give the cluster a kubeconfig)",
        "f.yaml: 1 problem; 3 clusters, 1 service",
    ]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    "sources",
    [
        BY_LABEL.replace("tier: gold", 'nodes: "yes"'),
        BY_LABEL.replace("node-addresses", "inventory, config: {file: all.json}"),
        "      - {cluster: new}\n" + BY_LABEL + "      - {cluster: old}\n",
    ],
    ids=["others", "brings-endpoints", "named"],
)
def test_check_ignores_selector_provider_where_it_is_not_used(sources: str) -> None:
    """A selector's provider is not checked for clusters that do not match or that another source names."""
    result = check(SELECTED + sources)

    assert (result.output, result.exit_code) == ("f.yaml: ok; 3 clusters, 1 service\n", 0)


def test_check_warns_of_networks_of_two_clusters_that_overlap() -> None:
    """Overlapping networks of two clusters are a warning; the exit code is 0."""
    result = check(GOOD.replace("10.8.0.0/16", "10.8.0.0/16, 10.7.3.0/24, 10.9.0.0/16"))

    assert result.output.splitlines() == [
        "f.yaml:9:33: warning: clusters[1].allowedCIDRs[1]: 10.7.3.0/24 of us overlaps 10.7.0.0/16 of eu",
        "f.yaml: ok, 1 warning; 2 clusters, 1 service",
    ]
    assert result.exit_code == 0


def test_check_does_not_warn_of_networks_of_one_cluster() -> None:
    """Overlapping networks of one cluster are no warning."""
    result = check(GOOD.replace("10.8.0.0/16", "10.8.0.0/16, 10.8.3.0/24"))

    assert "warning" not in result.output


def test_check_bounds_the_warnings() -> None:
    """Of many overlaps, some are listed and the rest is counted."""
    clusters = "".join(
        f"  - {{name: c{n}, kubeconfig: {{path: x}}, allowedCIDRs: [0.0.0.0/0], provider: {{name: node-addresses}}}}\n"
        for n in range(100)
    )
    result = check(f"version: 1\nclusters:\n{clusters}services: []\n")

    lines = result.output.splitlines()
    assert len(lines) == 22
    assert any("79 more networks" in line for line in lines)


def test_check_warns_of_too_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of open files that is too low for the clusters is a warning."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))

    assert "2 clusters need about 108 open files, a process may have 64 here" in check(GOOD).output


def test_a_hub_takes_as_many_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit of open files is raised to the hard limit, up to a maximum."""
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limit: asked.append((what, limit)))

    limits.raise_limit()

    assert asked == [(resource.RLIMIT_NOFILE, (limits.HIGHEST_LIMIT, 1 << 20))]


@pytest.fixture
def consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Install code as a consumer of endpoint views."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, code: str) -> None:
        (tmp_path / f"views_{name}.py").write_text(f"from hub.plugin import hookimpl\n{code}\n")
        info = tmp_path / f"views_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: views-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[hub.views]\n{name} = views_{name}\n")

    yield install
    for module in [each for each in sys.modules if each.startswith("views_")]:
        del sys.modules[module]


HOOK = "@hookimpl\ndef hub_endpoint_upserted(view): ..."


def test_check_loads_consumers(consumer: Callable[[str, str], None]) -> None:
    """Consumers that are not installed or cannot be loaded are reported with their places; good ones are not."""
    consumer("good", HOOK)
    consumer("broken", "import no_such_module")
    consumer("leaves", "raise SystemExit(0)")
    consumer("late", f"@hookimpl\nasync {HOOK.splitlines()[1]}")
    assert check(f"{GOOD}views: {{hooks: [good]}}\n").exit_code == 0

    result = check(f"{GOOD}views:\n  hooks: [good, godo, broken, leaves, late, godo]\n")

    found = [line.split(": ", 2) for line in result.stdout.splitlines()]
    missing = "consumer 'godo': no installed distribution has it in group hub.views (did you mean good?)"
    assert [each[:2] for each in found[:-1]] == [
        ["f.yaml:14:17", "views.hooks[1]"],
        ["f.yaml:14:23", "views.hooks[2]"],
        ["f.yaml:14:31", "views.hooks[3]"],
        ["f.yaml:14:39", "views.hooks[4]"],
        ["f.yaml:14:45", "views.hooks[5]"],
    ]
    assert found[0][2] == found[4][2] == missing
    assert found[1][2].startswith("consumer 'broken': cannot be loaded: ModuleNotFoundError: No module named")
    assert found[2][2] == "consumer 'leaves': cannot be loaded: SystemExit: 0"
    assert found[3][2].startswith("consumer 'late': views-late/late: hub_endpoint_upserted is async")
    assert result.exit_code == 1


def test_check_does_not_wait_for_a_consumer_for_ever(
    consumer: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer whose import hangs is a problem."""
    monkeypatch.setattr("hub.cli.checking.IMPORT_DEADLINE", 0.2)
    consumer("hangs", "import threading\nthreading.Event().wait(2)")

    result = check(f"{GOOD}views: {{hooks: [hangs]}}\n")

    assert "views.hooks[0]: consumer 'hangs': its import did not end within 0.2 s" in result.stdout


def test_check_online_does_not_call_a_frozen_cluster_ok(unused_port: int) -> None:
    """A frozen cluster is not contacted, and is reported neither as ok nor as failed."""
    cluster = f"{{name: a, cluster: {{server: 'https://127.0.0.1:{unused_port}'}}}}"
    context = "contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: t}}]"
    Path("hub").write_text(f"{{kind: Config, clusters: [{cluster}], {context}, current-context: a}}")
    Path("f.yaml").write_text(GOOD.partition("  - name: us")[0].replace("path: eu}", "path: eu}\n    state: frozen"))

    result = CliRunner().invoke(cli, ["check", "f.yaml", "--online", "--kubeconfig", "hub"])

    rows = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert rows["eu"].endswith("not tried: state frozen")
    assert rows["(hub cluster)"].endswith("connection refused")
    assert result.stdout.splitlines()[-1] == "online: 1 of 2 failed"


def test_check_of_the_example_finds_nothing() -> None:
    """clusters.example.yaml is valid with the providers of this repository."""
    result = CliRunner().invoke(cli, ["check", str(ROOT / "clusters.example.yaml")])

    assert result.exit_code == 0
    *_, last = result.stdout.splitlines()
    assert last.endswith("clusters.example.yaml: ok; 5 clusters, 3 services, 1 account, 1 cloud")
