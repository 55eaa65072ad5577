"""The chart with `allocations.enabled`: what it adds, and its admission policies on a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.cli import allocations_crd
from tests.support.allocations import DEFINITION, KIND, allocation, served
from tests.support.api import STRATEGIC_PATCH, Api, ApiRefused, Object
from tests.support.apiserver.server import ApiServer
from tests.support.helm import CHART, FULLNAME, NAMESPACE, Helm, HelmFailed, find
from tests.support.prometheus import ALERTS, ALLOCATION_ALERTS
from tests.support.waiting import eventually

WIDE = f"{NAMESPACE}.{FULLNAME}-allocations"
LABEL = "example.com/address"
NODE = "/api/v1/nodes/n1"


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    return Helm(tmp_path)


def values(**allocations: object) -> Object:
    """Values with allocations."""
    return {"allocations": {"enabled": True, **allocations}}


# --- rendered ------------------------------------------------------------------------------------------


def rights(objects: list[Object]) -> dict[str, list[str]]:
    """Namespace, or "" -> the rights that allocations add there, as ``resources: verbs``."""
    return {
        each["metadata"].get("namespace", ""): [
            f"{','.join(rule['resources'])}: {','.join(rule['verbs'])}" for rule in each["rules"]
        ]
        for each in objects
        if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"].endswith("-allocations")
    }


CLUSTER_WIDE = ["netipallocations: get,list,watch", "netipallocations/status: update", "nodes: get,list,watch,patch"]
READ = ["deployments,statefulsets,daemonsets,replicasets: get", "pods: list,watch"]
EVICT = "pods/eviction: create"
RIGHTS: list[tuple[Object, dict[str, list[str]]]] = [
    (values(), {"": CLUSTER_WIDE}),
    (values(detach=True), {"": [*CLUSTER_WIDE[:2], "netipallocations: update", CLUSTER_WIDE[2]]}),
    (values(allPods=True), {"": [*CLUSTER_WIDE, "pods: list"]}),
    (values(namespaces=["edge", "shop"]), {"": CLUSTER_WIDE, "edge": [*READ, EVICT], "shop": [*READ, EVICT]}),
    (values(namespaces=["edge"], eviction="None"), {"": CLUSTER_WIDE, "edge": READ}),
    (
        values(namespaces=["edge"], eviction="ForceDelete"),
        {"": CLUSTER_WIDE, "edge": [*READ, EVICT, "pods: delete"]},
    ),
    (values(interlock="kube-system/leader"), {"": CLUSTER_WIDE, "kube-system": ["leases: get"]}),
    (
        values(namespaces=["default"], interlock="default/leader")
        | {"rbac": {"scope": "namespaced", "namespaces": ["edge"]}},
        {"": CLUSTER_WIDE, "default": [*READ, EVICT, "events: create,patch", "leases: get"]},
    ),
    (values(namespaces=["edge"]) | {"rbac": {"create": False}}, {}),
    ({"allocations": {"namespaces": ["edge"], "detach": True, "interlock": "a/b"}}, {}),
]


@pytest.mark.parametrize(("given", "expected"), RIGHTS)
def test_rights_of_allocations_are_those_of_the_values(
    helm: Helm, given: Object, expected: dict[str, list[str]]
) -> None:
    """Each right comes with its value, in its namespace; each role is bound to the hub's account, and to no other."""
    objects = helm.template(given)
    assert rights(objects) == expected
    roles = [each for each in objects if each["metadata"]["name"].endswith("-allocations") and "rules" in each]
    for role in roles:
        [binding] = [
            each
            for each in objects
            if each["kind"] == f"{role['kind']}Binding"
            and each["metadata"].get("namespace") == role["metadata"].get("namespace")
            and each["roleRef"]["name"] == role["metadata"]["name"]
        ]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": FULLNAME, "namespace": NAMESPACE}]


def test_interlock_is_a_lease_by_its_name(helm: Helm) -> None:
    """The hub may read only the Lease that the value names."""
    role = find(helm.template(values(interlock="kube-system/ip-leader")), "Role", f"{FULLNAME}-allocations")
    assert role["rules"][0]["resourceNames"] == ["ip-leader"]


CLOUD: Object = {"name": "prod", "provider": "gcp", "addresses": ["34.1.2.0/24"], "clusters": ["local"]}


def registry(config: Object | None = None, **more: object) -> Object:
    """Values with one account in `registry.data`."""
    clouds = [{**CLOUD, "config": config or {}}]
    return {**values(), "registry": {"data": {"allocations": {"clouds": clouds, **more}}}}


def test_registry_names_the_interlock_and_secrets(helm: Helm) -> None:
    """The Lease and the Secrets of accounts in `registry.data` count like those of the values."""
    assert rights(helm.template(registry(interlock="kube-system/leader")))["kube-system"] == ["leases: get"]
    with pytest.raises(HelmFailed, match=r"registry\.data names the Secrets gcp, and the hub may read none"):
        helm.template(registry({"credentials": {"secret": "gcp", "key": "json"}}))


def test_registry_with_allocations_needs_their_rights(helm: Helm) -> None:
    """Allocations in `registry.data` without `allocations.enabled` are refused with the next step."""
    with pytest.raises(HelmFailed, match=r"set allocations\.enabled to true"):
        helm.template(registry() | {"allocations": {"enabled": False}})


def test_chart_without_allocations_has_nothing_of_them(helm: Helm) -> None:
    """Off, no object differs, whatever the other values of allocations are."""
    more: Object = {"metrics": {"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}}
    off = helm.template(more)
    assert "llocation" not in json.dumps(off)
    assert "169.254.169" not in json.dumps(find(off, "NetworkPolicy"))
    settings = {"metadataServer": True, "clusterName": "prod", "addressLabels": [LABEL], "namespaces": ["edge"]}
    assert helm.template({**more, "allocations": settings}) == off


def test_chart_installs_the_hubs_definition(helm: Helm) -> None:
    """The chart has the same bytes as the hub, renders them unchanged, and leaves them out with `crd: false`."""
    text = (CHART / "files" / "netipallocation.yaml").read_text()
    assert text == allocations_crd.text()
    assert find(helm.template(values()), "CustomResourceDefinition") == DEFINITION
    assert DEFINITION["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "CustomResourceDefinition" not in {each["kind"] for each in helm.template(values(crd=False))}


def test_pod_knows_its_node_and_its_cluster(helm: Helm) -> None:
    """NODE_NAME is the Pod's node; CLUSTER_NAME is set if it has a value."""

    def environment(given: Object) -> dict[str, Any]:
        [container] = find(helm.template(given), "Deployment")["spec"]["template"]["spec"]["containers"]
        return {each.pop("name"): each for each in container["env"]}

    found = environment(values(clusterName="gke-prod"))
    assert found["NODE_NAME"] == {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert found["CLUSTER_NAME"] == {"value": "gke-prod"}
    assert "CLUSTER_NAME" not in environment(values())


def test_metadata_services_can_be_reached_only_with_their_value(helm: Helm) -> None:
    """The NetworkPolicy opens single link-local addresses and ports, and only with `metadataServer`."""

    def opened(given: Object) -> list[tuple[str, list[int]]]:
        rules = find(helm.template(given), "NetworkPolicy")["spec"]["egress"]
        return [
            (to["ipBlock"]["cidr"], [port["port"] for port in rule["ports"]])
            for rule in rules
            for to in rule.get("to", ())
        ]

    assert opened(values()) == []
    assert opened(values(metadataServer=True)) == [
        ("169.254.169.254/32", [80]),
        ("169.254.169.252/32", [988]),
        ("169.254.170.23/32", [80]),
    ]


def test_alerts_of_allocations_are_a_second_rule(helm: Helm) -> None:
    """Both rules files are rendered as they are, and `runbookUrl` applies to both."""
    rule: Object = {"enabled": True, "labels": {"release": "prometheus"}}
    objects = helm.template({**values(), "metrics": {"prometheusRule": rule}})
    for name, file in ((FULLNAME, ALERTS), (f"{FULLNAME}-allocations", ALLOCATION_ALERTS)):
        found = find(objects, "PrometheusRule", name)
        assert found["spec"] == yaml.safe_load(file.read_text())
        assert found["metadata"]["labels"]["release"] == "prometheus"
    own = helm.template({**values(), "metrics": {"prometheusRule": {**rule, "runbookUrl": "https://w.example.com/"}}})
    [group] = find(own, "PrometheusRule", f"{FULLNAME}-allocations")["spec"]["groups"]
    assert {each["annotations"]["runbook_url"] for each in group["rules"]} == {
        f"https://w.example.com/{each['alert']}.md" for each in group["rules"]
    }


def test_dashboard_of_allocations_is_a_second_one(helm: Helm) -> None:
    """It has the uid of ip-address-controller's dashboard, in the ConfigMap that Grafana's sidecar finds."""
    found = find(
        helm.template({**values(), "metrics": {"dashboard": {"enabled": True}}}), "ConfigMap", f"{FULLNAME}-dashboard"
    )
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"].keys() == {"dashboard.json", "ip-address-controller.json"}
    assert json.loads(found["data"]["ip-address-controller.json"])["uid"] == "ip-address-controller"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"addressLabels": ["ip.ready"]}, "addressLabels/0"),
        ({"addressLabels": ["a'b"]}, "addressLabels/0"),
        ({"eviction": "Delete"}, "eviction"),
        ({"interlock": "leader"}, "interlock"),
        ({"mode": "enforce"}, "mode"),
    ],
)
def test_wrong_value_of_allocations_is_named(helm: Helm, given: Object, named: str) -> None:
    """The schema refuses it with its name."""
    with pytest.raises(HelmFailed, match=f"/allocations.*{named}"):
        helm.template(values(**given))


# --- on a real API server --------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path: Path, hub_cluster: ApiServer) -> Api:
    """The hub's account in a cluster with the chart and a node, once the policies are in force."""
    Helm(tmp_path, hub_cluster).install(values(addressLabels=[LABEL], detach=True))
    labels = {"kubernetes.io/os": "linux", "role": "edge"}
    body = {"metadata": {"name": "n1", "labels": labels, "annotations": {"a": "b"}}, "spec": {"podCIDR": "10.9.0.0/24"}}
    hub_cluster.api.post("/api/v1/nodes", body)
    api = hub_cluster.api_with(hub_cluster.service_account_token(NAMESPACE, FULLNAME))
    eventually(lambda: refusal(api, {"spec": {"unschedulable": True}}, dryRun="All"), 20)
    return api


def refusal(account: Api, change: Object, where: str = NODE, **query: str) -> str:
    """Why a change of a node is refused by the policy; "" if it is not."""
    try:
        account.patch(where, change, STRATEGIC_PATCH, **query)
    except ApiRefused as refused:
        return str(refused) if "ValidatingAdmissionPolicy" in str(refused) else ""
    return ""


def label(key: str, value: str | None) -> Object:
    """A change of one label; None removes it."""
    return {"metadata": {"labels": {key: value}}}


def test_account_changes_only_its_labels_of_nodes(account: Api, hub_cluster: ApiServer) -> None:
    """ip.ready and the address labels can be set, changed and removed; every other change of a Node is refused."""
    before = hub_cluster.api.get(NODE)
    for key in ("ip.ready", LABEL):
        for value in ("true", "34.1.2.3", None):
            assert account.patch(NODE, label(key, value))["metadata"]["labels"].get(key) == value
    for key, value in (("role", "web"), ("role", None), ("ip.ready2", "true"), ("ip.ready/x", "true")):
        assert f"does not change the label {key} of Nodes" in refusal(account, label(key, value))
    for change in (
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        {"spec": {"providerID": "gce://p/z/n"}},
        {"metadata": {"annotations": {"a": "c"}}},
        {"metadata": {"annotations": {"new": "x"}}},
        {"metadata": {"annotations": {"a": None}}},
        {"metadata": {"finalizers": ["example.com/a"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"}]}},
        {"metadata": {"labels": {"ip.ready": "true"}, "annotations": {"new": "x"}}},
    ):
        assert "changes nothing but labels of Nodes" in refusal(account, change), change
    after = hub_cluster.api.get(NODE)
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])


def test_policy_holds_the_account_even_with_more_rights(account: Api, hub_cluster: ApiServer) -> None:
    """An account that somebody made an administrator still cannot create, delete or report on Nodes."""
    binding = {
        "metadata": {"name": "too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": FULLNAME, "namespace": NAMESPACE}],
    }
    hub_cluster.api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    eventually(lambda: account.may_get("/api/v1/namespaces/kube-system/secrets"), 20)
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert "changes nothing but labels" in refusal(account, conditions, f"{NODE}/status")
    for method, where in (("POST", "/api/v1/nodes"), ("DELETE", NODE)):
        with pytest.raises(ApiRefused, match="neither creates nor deletes Nodes"):
            account.call(method, where, {"metadata": {"name": "n2"}} if method == "POST" else None)


def test_other_accounts_change_nodes_as_before(account: Api, hub_cluster: ApiServer) -> None:
    """The policy is about the hub's account only."""
    assert refusal(account, label("role", "web"))
    changed = hub_cluster.api.patch(NODE, {**label("role", "web"), "spec": {"unschedulable": True}}, STRATEGIC_PATCH)
    assert changed["metadata"]["labels"]["role"] == "web"
    assert changed["spec"]["unschedulable"] is True


def test_account_has_exactly_the_rights_of_allocations(account: Api, hub_cluster: ApiServer) -> None:
    """It reads allocations, writes their status and, with `detach`, finalizers; it creates and deletes none."""
    eventually(lambda: served(hub_cluster.api), 30)
    made = hub_cluster.api.post(KIND, allocation())
    assert [each["metadata"]["name"] for each in account.list(KIND)] == ["web"]
    made = account.put(f"{KIND}/web/status", {**made, "status": {"writer": "hub-0"}})
    made["metadata"]["finalizers"] = ["netinfra.darkbrains.com/release"]
    made = account.put(f"{KIND}/web", made)
    account.put(f"{KIND}/web", {**made, "metadata": {**made["metadata"], "finalizers": []}})
    for method, where in (
        ("POST", KIND),
        ("DELETE", f"{KIND}/web"),
        ("PATCH", f"{KIND}/web/status"),
        ("GET", "/api/v1/namespaces/edge/pods"),
    ):
        with pytest.raises(ApiRefused) as refused:
            account.call(method, where, allocation("other") if method in ("POST", "PATCH") else None)
        assert refused.value.status == 403, where


def test_invalid_and_double_addresses_only_warn(account: Api, hub_cluster: ApiServer) -> None:
    """An entry that is no IPv4 address and one that is there twice are warnings, not errors."""
    api = hub_cluster.api
    assert account.warnings == []
    eventually(lambda: served(api), 30)

    def warned(*addresses: str) -> list[str]:
        api.post(KIND, allocation(reservedIPs=list(addresses)), dryRun="All")
        return api.warnings

    eventually(lambda: warned("x"), 20)
    for entry in ("34.1.2", " 34.1.2.3 ", "010.0.0.1", "::ffff:1.2.3.4", "2001:db8::1", "web.example.com", ""):
        [warning] = warned("34.1.2.3", entry)
        assert f"an entry that is not an IPv4 address: {entry}".rstrip() in warning
    [warning] = warned("34.1.2.3", "34.1.2.4", "34.1.2.3")
    assert "an address twice: 34.1.2.3" in warning
    assert len(warned("x", "x")) == 2
    assert warned() == warned("34.1.2.3", "34.1.2.4") == []
    many = [f"134.146.{number // 100 + 100}.{number % 100 + 100}" for number in range(1000)]
    assert warned(*many[:500]) == warned(*many) == []
    assert "not an IPv4 address: x" in str(warned(*many[:-1], "x"))
    assert f"twice: {many[0]}" in str(warned(*many[:500], many[0]))
