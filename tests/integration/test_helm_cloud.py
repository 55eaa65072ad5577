"""The chart with `cloud.enabled`: the rights and policies of ``hub cluster add --cloud`` in the hub's own cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.controller.rights import IDENTITY, PART_RULES, lease_rules, rights_of
from hub.kube.hub_access import load_in_cluster
from hub.onboarding.manifests import Access, manifests
from tests.support.api import Object, refusal
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE
from tests.support.helm import CHART, FULLNAME, NAMESPACE, OWNER, SYSTEM_ACCOUNT, Helm, HelmFailed, find
from tests.support.hub import RunningHub, World
from tests.support.waiting import eventually

WIDE = f"{NAMESPACE}.{FULLNAME}-cloud"
EXAMPLE = CHART / "examples" / "cloud.yaml"
PROVIDER_ID = "brightbox://srv-[0-9a-z]+"
POLICY = "ValidatingAdmissionPolicy"


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    return Helm(tmp_path)


def values(**cloud: object) -> Object:
    """Values with the cloud controller."""
    return {"cloud": {"enabled": True, "providerID": PROVIDER_ID, **cloud}}


# --- rendered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [["nodes"], ["load-balancers"], ["nodes", "delete-nodes"], ["nodes", "load-balancers", "delete-nodes"]]
)
def test_rights_are_those_of_the_parts(helm: Helm, parts: list[str]) -> None:
    """The roles have the rights that the hub reviews for these parts, and those to read Nodes; no others."""
    objects = helm.template(values(parts=parts))
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    events = [rule for rule in PART_RULES["nodes"] if rule["resources"] == ["events"]]
    wanted = rights_of([nodes, *events, *(rule for part in parts for rule in PART_RULES[part])])
    assert {*rights_of(find(objects, "ClusterRole", WIDE)["rules"])} == {*wanted, IDENTITY}
    role = find(objects, "Role", f"{FULLNAME}-cloud")
    assert role["metadata"]["namespace"] == "kube-system"
    assert {*rights_of(role["rules"])} == {*rights_of(lease_rules())}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        binding = find(objects, kind, WIDE if kind.startswith("Cluster") else f"{FULLNAME}-cloud")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": FULLNAME, "namespace": NAMESPACE}]


def policies(objects: list[Object]) -> dict[str, Object]:
    """Kind of object -> the spec of its policy."""
    return {
        each["spec"]["matchConstraints"]["resourceRules"][0]["resources"][0]: each["spec"]
        for each in objects
        if each["kind"] == POLICY and "cloud" in each["metadata"]["name"]
    }


def test_policies_are_those_of_a_remote_cluster(helm: Helm) -> None:
    """But for the account's name they are the policies that ``hub cluster add --cloud`` creates."""
    access = Access("c", NAMESPACE, FULLNAME, cloud=tuple(PART_RULES), provider_ids=(PROVIDER_ID,))
    objects = helm.template(values())
    assert policies(objects) == policies(manifests(access))
    assert policies(objects).keys() == {"nodes", "services"}
    bound = [each for each in objects if each["kind"] == f"{POLICY}Binding" and WIDE in each["metadata"]["name"]]
    assert [each["spec"]["policyName"] for each in bound] == [f"{WIDE}-nodes", f"{WIDE}-services"]
    assert policies(helm.template(values(parts=["load-balancers"]))).keys() == {"services"}
    assert policies(helm.template(values() | {"admission": {"enabled": False}})) == {}


def test_one_policy_restricts_nodes_with_allocations_too(helm: Helm) -> None:
    """Two would refuse each other's changes: that of the cloud controller also allows the address labels."""
    both = values() | {"allocations": {"enabled": True, "addressLabels": ["example.com/address"]}}
    objects = helm.template(both)
    assert 'key in ["ip.ready","example.com/address"]' in json.dumps(policies(objects)["nodes"]).replace('\\"', '"')
    names = [each["metadata"]["name"] for each in objects if each["kind"] == POLICY]
    assert f"{NAMESPACE}.{FULLNAME}-allocations" not in names
    assert f"{NAMESPACE}.{FULLNAME}-allocations-reserved-ips" in names
    alone = helm.template({**both, "cloud": {**both["cloud"], "parts": ["load-balancers"]}})
    assert f"{NAMESPACE}.{FULLNAME}-allocations" in [each["metadata"]["name"] for each in alone]


def test_the_registry_names_the_cloud(helm: Helm) -> None:
    """Without `providerID` the IDs begin with the name of the cloud in `registry.data`."""
    assert 'matches(\\"^(?:brightbox://.+)$\\")' in json.dumps(policies(helm.template(EXAMPLE))["nodes"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cloud": {"enabled": False}}, "set cloud.enabled to true"),
        ({"registry": {"data": {"clusters": []}}}, "cloud.enabled needs cloud.providerID"),
        ({"secrets": {"names": ["other"]}}, "registry.data names the Secret brightbox, which secrets.names lacks"),
        ({"cloud": {"parts": ["routes"]}}, "parts/0"),
        ({"cloud": {"providerID": "a'b"}}, "providerID"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_do_not_fit_are_refused(helm: Helm, change: Object, said: str) -> None:
    """The message names the value and the next step."""
    given: Object = yaml.safe_load(EXAMPLE.read_text())
    for section, settings in change.items():
        given[section] = {**given[section], **settings}
    with pytest.raises(HelmFailed, match=said):
        helm.template(given)


def test_chart_without_a_cloud_has_nothing_of_it(helm: Helm) -> None:
    """Off, no object differs, whatever the other values are."""
    assert helm.template({"cloud": {"parts": ["nodes"], "providerID": PROVIDER_ID}}) == helm.template()


# --- installed -----------------------------------------------------------------------------------------


@pytest.fixture
def cloud() -> Iterator[BrightboxThread]:
    """The fake of Brightbox."""
    with BrightboxThread() as running:
        yield running


class OwnCluster(BrightboxScene):
    """The hub's own cluster, with the chart's account."""

    def write(self, **section: Any) -> None:
        """Write the registry: the cluster is the hub's own."""
        super().write(**section)
        made = yaml.safe_load(self.world.path.read_text())
        made["clusters"][0]["kubeconfig"] = {"inCluster": True}
        self.world.write_text(yaml.safe_dump({"owner": OWNER, **made}))


def test_hub_serves_its_own_cluster_under_the_charts_policies(
    hub_cluster: ApiServer, tmp_path: Path, cloud: BrightboxThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the chart's account, roles and policies the hub initialises a Node and makes and removes a balancer."""
    if hub_cluster.api.exists(LEASE):  # of an earlier test
        hub_cluster.api.delete(LEASE)
    Helm(tmp_path, hub_cluster).install(values())
    token = hub_cluster.service_account_token(NAMESPACE, FULLNAME)
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(token)
    (account / "ca.crt").write_text(hub_cluster.ca_pem)
    (account / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr("hub.observe.remote.access.load_in_cluster", partial(load_in_cluster, folder=account))
    host, _, port = hub_cluster.url.removeprefix("https://").rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    world = World(tmp_path, hub_cluster, {})
    hub_cluster.kubeconfig(world.kubeconfig, token=token)
    scene = OwnCluster(world, hub_cluster, cloud)
    scene.write()
    mark = hub_cluster.audit_mark()
    with RunningHub(world, namespace=NAMESPACE, **scene.options):
        node = scene.add_node()
        eventually(lambda: scene.initialized(node), 40)
        scene.add_service()
        eventually(lambda: scene.hostnames() != [], 40)
        account_api, said = hub_cluster.api_with(token), "nothing in the spec of Nodes but two taints"
        cordon = ("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        eventually(lambda: said in refusal(account_api, *cordon), 20)  # a new policy is enforced some seconds late
        hub_cluster.api.delete("/api/v1/namespaces/edge/services/web")
        eventually(lambda: not hub_cluster.api.exists("/api/v1/namespaces/edge/services/web"), 60)
    assert cloud.fake.account.named("web.edge.eu") == []
    refused = [found for found in hub_cluster.requests(mark, SYSTEM_ACCOUNT) if found.status in (403, 422)]
    assert [(found.status, found.uri) for found in refused if "dryRun" not in found.uri] == []
