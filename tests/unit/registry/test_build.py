"""From the file to specs: precedence, selectors and paths."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from hub.model import TargetKey
from hub.registry.load import load, loads
from hub.registry.spec import (
    AnnotationPolicy,
    CloudBalancersSpec,
    CloudNodesSpec,
    CloudSpec,
    ClusterSpec,
    CopyRule,
    FailoverPolicy,
    GuardPolicy,
    HealthPolicy,
    KubeconfigPath,
    KubeconfigSecret,
    NodePolicy,
    NodePortRef,
    PortSpec,
    ProviderRef,
    Registry,
    SourceSpec,
    TargetSpec,
    UnreachablePolicy,
)
from tests.support.registry import strict

CLUSTER = "kubeconfig: {path: k}, allowedCIDRs: [10.0.0.0/8], provider: {name: p}"


SOURCE_OF_COPIES = SourceSpec(
    "local", ProviderRef("service-copy"), guard=GuardPolicy(empty_results=7), guard_set=frozenset({"empty_results"})
)
"""The source of copies by annotation in a file with ``defaults: {guard: {emptyResults: 7}}``."""


def registry(
    clusters: str = f"[{{name: a, {CLUSTER}}}]", service: str = "sources: [{cluster: a}]", head: str = ""
) -> Registry:
    """A registry with one service, in flow style."""
    text = f"version: 1\n{head}\nclusters: {clusters}\nservices:\n  - {{name: s, namespace: n, {service}}}\n"
    return strict(loads(text.encode(), "f"))


def sources(read: Registry) -> tuple[SourceSpec, ...]:
    """The sources of the only service."""
    return read.targets[TargetKey("n", "s")].sources


def test_defaults_are_the_specs() -> None:
    """A key that is not written has the default of its spec."""
    assert sources(registry()) == (SourceSpec("a", ProviderRef("p")),)


def test_every_key_of_a_cluster_is_in_its_spec() -> None:
    """Each key of a cluster's entry has its field in the spec."""
    entry = (
        "name: a, kubeconfig: {secret: s, key: k, context: c}, formerly: [b], state: standby, labels: {x: y}, "
        "maxEndpoints: 7, allowedCIDRs: [10.0.0.0/8, 'fd00::/8'], allowedPorts: [80, 443-444], "
        "provider: {name: p, config: {x: 1}}"
    )

    assert registry(f"[{{{entry}}}]").clusters["a"] == ClusterSpec(
        "a",
        ProviderRef("p", '{"x":1}'),
        KubeconfigSecret("s", "k", "c"),
        ("b",),
        "standby",
        {"x": "y"},
        (ip_network("10.0.0.0/8"), ip_network("fd00::/8")),
        ((80, 80), (443, 444)),
        7,
    )


def test_every_key_of_a_service_is_in_its_spec() -> None:
    """Each key of a Service's entry has its field in the spec."""
    read = registry(
        service="sources: [{cluster: a}], strategy: failover, policy: sync, endpointsPerSlice: 7, drain: '0', "
        "failover: {minReady: 2, after: 1s, failback: manual, failbackAfter: 2s}, adopt: {managedBy: old}, "
        "ports: [{name: a, nodePort: {service: x/y, port: http}, appProtocol: h2}, {name: b, port: 5, protocol: UDP}]"
    )

    assert read.targets[TargetKey("n", "s")] == TargetSpec(
        TargetKey("n", "s"),
        (SourceSpec("a", ProviderRef("p")),),
        "failover",
        FailoverPolicy(2, 1.0, "manual", 2.0),
        (
            PortSpec(0, "a", "TCP", "h2", NodePortRef(TargetKey("x", "y"), "http")),
            PortSpec(5, "b", "UDP"),
        ),
        "sync",
        7,
        0.0,
        "old",
    )


def test_keys_outside_of_entries_are_in_the_registry() -> None:
    """The registry has the owners, denied networks and folder of the file."""
    read = registry(head="owner: o\npreviousOwners: [p]\ndeniedCIDRs: [10.1.0.0/16]")

    assert (read.owner, read.previous_owners, read.denied_cidrs) == ("o", ("p",), (ip_network("10.1.0.0/16"),))
    assert (read.folder, read.annotations, read.views) == (str(Path.cwd()), AnnotationPolicy(), None)


@pytest.mark.parametrize(
    ("annotations", "policy"),
    [
        ("{}", AnnotationPolicy()),
        ("{enabled: false, allow: [{from: a/b, to: [c/d]}]}", AnnotationPolicy()),
        ("{enabled: true}", AnnotationPolicy(enabled=True, source=SOURCE_OF_COPIES)),
        (
            "{enabled: true, allow: [{from: a/*, to: [c/d, e/f]}]}",
            AnnotationPolicy(enabled=True, allow=(CopyRule("a/*", ("c/d", "e/f")),), source=SOURCE_OF_COPIES),
        ),
    ],
)
def test_copies_by_annotation_have_the_files_defaults(annotations: str, policy: AnnotationPolicy) -> None:
    """If copies are enabled, their source is the hub cluster with the file's defaults, and the rules are kept."""
    read = registry(head=f"defaults: {{guard: {{emptyResults: 7}}}}\nannotations: {annotations}")

    assert read.annotations == policy
    assert read.annotations.enabled is ("enabled: true" in annotations)


def test_source_wins_over_service_over_cluster_over_defaults() -> None:
    """Each key comes from the most specific layer in which it is written."""
    keys = ("emptyResults: 1", "maxRemoval: 10%", "maxRemovalWindow: 1m", "maxRemovalHold: 1s")
    layers = [", ".join(key.replace("1", str(layer), 1) for key in keys[: 5 - layer]) for layer in (1, 2, 3, 4)]

    read = registry(
        head=f"defaults: {{guard: {{{layers[0]}}}}}",
        clusters=f"[{{name: a, {CLUSTER}, guard: {{{layers[1]}}}}}]",
        service=f"guard: {{{layers[2]}}}, sources: [{{cluster: a, guard: {{{layers[3]}}}}}]",
    )

    assert sources(read)[0].guard == GuardPolicy(4, 0.3, 120.0, 1.0)


def test_guard_set_has_all_written_keys() -> None:
    """``guard_set`` has all written keys, even those whose value is the default."""
    read = registry(
        head="defaults: {guard: {emptyResults: 3}}", service="guard: {maxRemoval: off}, sources: [{cluster: a}]"
    )

    assert sources(read)[0].guard_set == {"empty_results", "max_removal"}


def test_sections_do_not_mix() -> None:
    """The sections unreachable and nodes have the same precedence as guard."""
    read = registry(
        head="defaults: {unreachable: {after: 1m}, nodes: {cordoned: drop}}",
        service="unreachable: {policy: remove}, sources: [{cluster: a, nodes: {controlPlane: true}}]",
    )

    assert sources(read)[0].unreachable == UnreachablePolicy(60.0, "remove")
    assert sources(read)[0].nodes == NodePolicy(control_plane=True, cordoned="drop")


def test_exclude_is_merged_key_by_key() -> None:
    """A source's excluded addresses do not replace the cluster's excluded nodes."""
    read = registry(
        clusters=f"[{{name: a, {CLUSTER}, nodes: {{exclude: {{nodes: [x], addresses: [1.1.1.1]}}}}}}]",
        service="sources: [{cluster: a, nodes: {exclude: {addresses: [2.2.2.2]}}}]",
    )

    assert sources(read)[0].nodes == NodePolicy(
        exclude_nodes=frozenset({"x"}), exclude_addresses=frozenset({"2.2.2.2"})
    )


def test_source_provider_replaces_the_clusters() -> None:
    """A source's provider replaces the cluster's together with its configuration."""
    read = registry(service="sources: [{cluster: a, provider: {name: q, config: {b: [1, null], a: ä}}}]")

    assert sources(read)[0].provider == ProviderRef("q", '{"a":"ä","b":[1,null]}')


def test_provider_config_is_canonical() -> None:
    """Providers are equal if only the order of their configuration's keys differs."""
    one, two = (
        registry(f"[{{name: a, {CLUSTER[:-1]}, config: {config}}}}}]") for config in ("{x: 1, y: 2}", "{y: 2, x: 1}")
    )

    assert sources(one) == sources(two)


def test_selector_follows_the_file() -> None:
    """Selected clusters are in file order; a selector skips clusters that another source names or selected."""
    names = ("c", "a", "b", "d")
    clusters = ", ".join(
        f"{{name: {name}, {CLUSTER}, labels: {{r: {'x' if name == 'd' else 'eu'}}}}}" for name in names
    )

    read = registry(
        f"[{clusters}]", service="sources: [{clusterSelector: {r: eu}}, {clusterSelector: {}}, {cluster: a}]"
    )

    assert [source.cluster for source in sources(read)] == ["c", "b", "d", "a"]


def test_equal_sources_are_one_object() -> None:
    """Two services with equal sources share the same objects."""
    text = f"version: 1\nclusters: [{{name: a, {CLUSTER}, labels: {{r: eu}}}}]\nservices:\n" + "".join(
        f"  - {{name: s{n}, namespace: n, sources: [{{clusterSelector: {{r: eu}}}}], guard: {{emptyResults: 1}}}}\n"
        for n in (1, 2)
    )

    one, two = strict(loads(text.encode(), "f")).targets.values()

    assert one.sources is two.sources
    assert one.failover is two.failover


def test_equal_parts_of_different_sources_are_one_object() -> None:
    """Sources that differ in one section share the objects of the others."""
    clusters = ", ".join(f"{{name: {name}, {CLUSTER}}}" for name in "ab")

    one, two = sources(
        registry(f"[{clusters}]", service="sources: [{cluster: a}, {cluster: b, guard: {emptyResults: 1}}]")
    )

    assert one.guard != two.guard
    assert (one.provider, one.nodes) == (two.provider, two.nodes)
    assert one.provider is two.provider
    assert one.nodes is two.nodes
    assert one.health is two.health


@pytest.mark.parametrize(
    ("one", "other", "policies"),
    [
        ("maxRemoval: off", "", (GuardPolicy(max_removal=None), GuardPolicy())),
        ("maxRemovalHold: never", "", (GuardPolicy(max_removal_hold=None), GuardPolicy())),
        (
            "maxRemoval: off",
            "maxRemovalHold: never",
            (GuardPolicy(max_removal=None), GuardPolicy(max_removal_hold=None)),
        ),
        (
            "emptyResults: 5, maxRemoval: off",
            "emptyResults: 5",
            (GuardPolicy(5, max_removal=None), GuardPolicy(5)),
        ),
    ],
)
@pytest.mark.parametrize("where", ["services", "sources"])
@pytest.mark.parametrize("turned", [False, True])
def test_written_off_differs_from_an_unwritten_key(
    one: str, other: str, policies: tuple[GuardPolicy, GuardPolicy], where: str, *, turned: bool
) -> None:
    """A written ``off`` or ``never`` is not confused with an unwritten key of another service."""
    cases = [(one, policies[0]), (other, policies[1])]
    if turned:
        cases.reverse()
    text = f"version: 1\nclusters: [{{name: a, {CLUSTER}}}]\nservices:\n"
    for number, (guard, _) in enumerate(cases):
        body = f"sources: [{{cluster: a}}], guard: {{{guard}}}"
        if where == "sources":
            body = f"sources: [{{cluster: a, guard: {{{guard}}}}}]"
        text += f"  - {{name: s{number}, namespace: n, {body}}}\n"

    read = strict(loads(text.encode(), "f"))

    found = [source.guard for target in read.targets.values() for source in target.sources]
    assert found == [policy for _, policy in cases]


def test_local_needs_no_entry() -> None:
    """The cluster ``local`` always exists, without a provider and without allowed networks."""
    read = registry(service="sources: [{cluster: local, provider: {name: service-copy}}]")

    assert sources(read)[0].cluster == "local"
    assert (read.clusters["local"].provider, read.clusters["local"].allowed_cidrs) == (None, ())


def test_ports_keep_their_order() -> None:
    """Ports keep the order in which they are written."""
    read = registry(service="sources: [{cluster: a}], ports: [{name: b, port: 2}, {name: a, port: 1, protocol: UDP}]")

    assert read.targets[TargetKey("n", "s")].ports == (PortSpec(2, "b"), PortSpec(1, "a", "UDP"))


def test_kubeconfig_from_a_secret() -> None:
    """The key in a kubeconfig's Secret defaults to ``kubeconfig``."""
    read = registry(f"[{{name: a, {CLUSTER.replace('path: k', 'secret: s')}}}]")

    assert read.clusters["a"].kubeconfig == KubeconfigSecret("s", "kubeconfig")


def test_kubeconfig_path_starts_at_the_registrys_folder_as_given(tmp_path: Path) -> None:
    """Relative paths of a symlinked registry start at the symlink's folder."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.mkdir()
    (real / "clusters.yaml").write_text(f"version: 1\nclusters: [{{name: a, {CLUSTER}}}]\n")
    (link / "clusters.yaml").symlink_to(real / "clusters.yaml")

    read = strict(load(link / "clusters.yaml"))

    assert read.clusters["a"].kubeconfig == KubeconfigPath(str(link / "k"))
    assert read.folder == str(link)


def test_absolute_kubeconfig_path_stays() -> None:
    """An absolute path is not changed."""
    read = registry(f"[{{name: a, {CLUSTER.replace('path: k', 'path: /etc/k')}}}]")

    assert read.clusters["a"].kubeconfig == KubeconfigPath("/etc/k")


def test_allowed_ports_default_to_the_node_ports() -> None:
    """The default of allowedPorts is Kubernetes' own range of node ports."""
    assert registry().clusters["a"].allowed_ports == ((30000, 32767),)


@pytest.mark.parametrize(
    ("head", "cluster", "service", "source", "zones"),
    [
        ("", "", "", "", ()),
        ("{b: y, a: x}", "", "", "", (("a", "x"), ("b", "y"))),
        ("{a: x}", "{b: y}", "", "", (("b", "y"),)),
        ("{a: x}", "{b: y}", "{c: z}", "", (("c", "z"),)),
        ("{a: x}", "{b: y}", "{c: z}", "{d: w}", (("d", "w"),)),
        ("{a: x}", "", "{}", "", ()),
    ],
)
def test_nearest_zone_map_replaces_the_others(
    head: str, cluster: str, service: str, source: str, zones: tuple[tuple[str, str], ...]
) -> None:
    """The zone map of the source, service, cluster or defaults, in this order, applies as a whole."""
    key = {text: f", zoneMap: {text}" if text else "" for text in (cluster, service, source)}
    read = registry(
        head=f"defaults: {{zoneMap: {head}}}" if head else "",
        clusters=f"[{{name: a, {CLUSTER}{key[cluster]}}}]",
        service=f"sources: [{{cluster: a{key[source]}}}]{key[service]}",
    )
    assert sources(read)[0].nodes == NodePolicy(zones=zones)


def test_zone_maps_do_not_apply_to_the_hub_cluster() -> None:
    """The zones of sources in the hub cluster are the hub's own."""
    local = "{cluster: local, provider: {name: p}}"
    read = registry(head="defaults: {zoneMap: {a: x}}", service=f"sources: [{local}]")
    assert sources(read)[0].nodes == NodePolicy()


def test_health_is_merged_key_by_key() -> None:
    """Health has the precedence of the other sections, key by key; lists replace each other as a whole."""
    read = registry(
        head="defaults: {health: {mode: http, interval: 1s, rise: 9, status: [200]}}",
        clusters=f"[{{name: a, {CLUSTER}, health: {{rise: 8, fall: 8, headers: {{X-B: b, X-A: a}}}}}}]",
        service="sources: [{cluster: a, health: {mode: https, ca: tls/ca.pem}}], "
        "health: {fall: 7, status: [204, 101-103]}",
    )
    assert sources(read)[0].health == HealthPolicy(
        "https",
        interval=1.0,
        rise=8,
        fall=7,
        headers=(("X-A", "a"), ("X-B", "b")),
        status=((101, 103), (204, 204)),
        ca=str(Path.cwd() / "tls/ca.pem"),
    )


@pytest.mark.parametrize(
    ("far", "near", "health"),
    [
        ("port: 80", "healthCheckNodePort: a/b", HealthPolicy("https", service=TargetKey("a", "b"))),
        ("healthCheckNodePort: a/b", "port: 80", HealthPolicy("https", port=80)),
        ("insecure: true", "ca: /a.pem", HealthPolicy("https", ca="/a.pem")),
        ("ca: /a.pem", "insecure: true", HealthPolicy("https", insecure=True)),
        ("ca: /a.pem", "insecure: false", HealthPolicy("https", ca="/a.pem")),
        ("port: 80, insecure: true", "rise: 9", HealthPolicy("https", port=80, insecure=True, rise=9)),
    ],
)
def test_more_specific_alternative_health_key_applies(far: str, near: str, health: HealthPolicy) -> None:
    """Of two alternative keys in different layers, the one in the more specific layer applies."""
    service = f"sources: [{{cluster: a}}], health: {{{near}}}"
    read = registry(head=f"defaults: {{health: {{mode: https, {far}}}}}", service=service)
    assert sources(read)[0].health == health


def test_sources_with_health_off_are_equal() -> None:
    """Sources without health checks are equal, whatever other health keys the defaults have."""
    read = registry(head="defaults: {health: {interval: 1s, rise: 9}}")
    assert sources(read) == (SourceSpec("a", ProviderRef("p")),)


def test_stale_sources_may_be_probed() -> None:
    """``unreachable.probe`` is merged like the other keys of its section."""
    read = registry(
        head="defaults: {unreachable: {probe: tcp}}", service="sources: [{cluster: a, unreachable: {policy: remove}}]"
    )
    assert sources(read)[0].unreachable == UnreachablePolicy(policy="remove", probe="tcp")


@pytest.mark.parametrize(
    ("keys", "health"),
    [
        ("port: 80", HealthPolicy(port=80)),
        ("healthCheckNodePort: a/b, rise: 9", HealthPolicy(service=TargetKey("a", "b"))),
        ("mode: 'off', port: 80", HealthPolicy(port=80)),
    ],
)
def test_unreachable_probe_keeps_port_keys_with_health_off(keys: str, health: HealthPolicy) -> None:
    """With ``unreachable.probe`` the keys for the port are kept even if health's mode is off."""
    read = registry(head=f"defaults: {{unreachable: {{policy: remove, probe: tcp}}, health: {{{keys}}}}}")
    assert sources(read)[0].health == health


def cloud(text: str) -> CloudSpec:
    """The ``cloud`` of a cluster with these keys beside the provider."""
    written = f"[{{name: a, {CLUSTER}, cloud: {{provider: {{name: brightbox}}, {text}}}}}]"
    found = registry(written).clusters["a"].cloud
    assert found is not None
    return found


def test_every_key_of_a_cloud_is_in_its_spec() -> None:
    """Each key of the section has its field; ``off`` is None."""
    nodes = "initialize: false, addresses: false, shutdownTaint: false, delete: never, deleteAfter: 2m, maxDelete: 20%"
    times = "deleteWindow: 20m, refresh: 10m, monitor: 30s"
    balancers = "class: c, namespaces: [edge], settle: 3s, settleMax: 9s, resync: 20m, orphans: delete"
    written = f"clusterName: A_b, formerClusterNames: [c], mode: observe, nodes: {{{nodes}, {times}}}"
    assert cloud(f"{written}, loadBalancers: {{{balancers}}}") == CloudSpec(
        ProviderRef("brightbox"),
        "A_b",
        manage=False,
        former_names=("c",),
        nodes=CloudNodesSpec(
            initialize=False,
            addresses=False,
            shutdown_taint=False,
            delete="never",
            delete_after=120.0,
            max_delete=0.2,
            delete_window=1200.0,
            refresh=600.0,
            monitor=30.0,
        ),
        balancers=CloudBalancersSpec("c", ("edge",), 3.0, 9.0, 1200.0, "delete"),
    )
    assert cloud("nodes: off, loadBalancers: off") == CloudSpec(
        ProviderRef("brightbox"), "a", nodes=None, balancers=None
    )


def test_intervals_of_a_cloud_have_floors() -> None:
    """30 s, 5 s and 60 s are the shortest that a cloud's API is asked at; zero is not a way around them."""
    for text in ("1s", "0s"):
        found = cloud(f"nodes: {{refresh: {text}, monitor: {text}}}, loadBalancers: {{resync: {text}}}")
        assert found.nodes == CloudNodesSpec(refresh=30.0, monitor=5.0)
        assert found.balancers == CloudBalancersSpec(resync=60.0)
