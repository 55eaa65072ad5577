"""The kind NetIPAllocation on a real API server: everything that ip-address-controller admits is admitted unchanged."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.allocations import CRD, DEFINITION, KIND, allocation, define, printed
from tests.support.api import Api, ApiRefused, Object
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import eventually

TEXT: Object = {"type": "string"}
OLD_SPEC: Object = {
    "type": "object",
    "required": ["reservedIPs", "cloud"],
    "properties": {
        "reservedIPs": {"type": "array", "items": TEXT},
        "workloadRef": {
            "type": "object",
            "required": ["kind", "name"],
            "properties": {
                "kind": {**TEXT, "enum": ["Deployment", "StatefulSet", "DaemonSet"]},
                "name": TEXT,
                "namespace": TEXT,
            },
        },
        "nodeSelector": {"type": "object", "additionalProperties": TEXT},
        "cloud": {
            "type": "object",
            "properties": {
                "provider": {**TEXT, "enum": ["gcp", "aws", "azure"]},
                "region": TEXT,
                "zones": {"type": "array", "items": TEXT},
            },
        },
        "reconcileInterval": {"type": "integer", "minimum": 5},
    },
}
"""The schema of ``spec`` in ip-address-controller 1.1.0."""
TEXTS = ("", "a", "34.1.2.3", " 34.1.2.3 ", "010.0.0.1", "2001:db8::1", "ip.ready", "ä\n", "x" * 10_000)
NUMBERS = (5, 30, 2**31, 2**63 - 1)


@pytest.fixture
def api(hub_cluster: ApiServer) -> Api:
    """An API server that serves the kind."""
    define(hub_cluster.api)
    return hub_cluster.api


def any_of(schema: Object, choose: random.Random) -> Any:
    """A random value that a schema admits, with and without its optional fields."""
    match schema:
        case {"enum": [*choices]}:
            return choose.choice(choices)
        case {"type": "string"}:
            return choose.choice(TEXTS)
        case {"type": "integer"}:
            return choose.choice(NUMBERS)
        case {"type": "array", "items": items}:
            return [any_of(items, choose) for _ in range(choose.choice((0, 1, 3)))]
        case {"additionalProperties": items}:
            return {key: any_of(items, choose) for key in choose.sample(("", "role", "a/b"), choose.choice((0, 1, 3)))}
    needed = schema.get("required", ())
    present = [name for name in schema["properties"] if name in needed or choose.random() < 0.7]
    return {name: any_of(schema["properties"][name], choose) for name in present}


def test_allocations_of_ip_address_controller_are_admitted_unchanged(api: Api) -> None:
    """What the old schema admits is admitted, and stored as it was given: nothing is added and nothing dropped."""
    choose = random.Random(22)
    for _ in range(300):
        spec = any_of(OLD_SPEC, choose)
        assert api.post(KIND, allocation(**spec), dryRun="All", fieldValidation="Strict")["spec"] == spec


def test_stored_allocations_stay_when_the_kind_is_replaced(hub_cluster: ApiServer) -> None:
    """Objects of the old kind are unchanged under the new one, and then get a status."""
    api = hub_cluster.api
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": OLD_SPEC}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    define(api, {**DEFINITION, "spec": {**DEFINITION["spec"], "versions": [version]}})
    old = api.post(KIND, allocation(workloadRef={"kind": "Deployment", "name": "web"}, reconcileInterval=15))
    api.patch(CRD, {"spec": DEFINITION["spec"]})
    status = {"observedGeneration": 1, "addresses": [{"address": "34.1.2.3", "state": "Pending", "reason": "NoNode"}]}

    def written() -> Object:
        try:
            return api.put(f"{KIND}/web/status", {**api.get(f"{KIND}/web"), "status": status})
        except ApiRefused as refused:
            raise AssertionError(refused) from refused  # the server may not serve the subresource yet

    new = eventually(written, 30)
    assert new["spec"] == old["spec"]
    assert new["status"] == status


def test_promised_fields_are_admitted(api: Api) -> None:
    """`deploymentRef` and any `strategy` are stored, and so is every field of the hub."""
    spec: Object = {
        "deploymentRef": {"name": "web", "namespace": "edge"},
        "strategy": {"maxSurge": 1, "any": {"thing": [1]}},
        "cluster": "eu-1",
        "cloud": {"provider": "ionos", "account": "Prod 1", "region": "de/fra", "zones": ["AUTO"]},
        "releasePolicy": "Detach",
        "eviction": "ForceDelete",
        "minAttached": 1,
        "addressLabel": "example.com/address",
        "cordonedHold": "never",
        "notReadyGrace": "1h30m",
    }
    assert api.post(KIND, allocation(**spec), fieldValidation="Strict")["spec"] == {"reservedIPs": ["34.1.2.3"], **spec}


REFUSED: list[tuple[Object, str]] = [
    ({"minAttached": 2}, "minAttached is more than there are reservedIPs"),
    ({"addressLabel": "ip.ready"}, "ip.ready is the hub's own label"),
    ({"eviction": "ForceDelete"}, "ForceDelete needs a workloadRef"),
    ({"reservedIPs": ["34.1.2.3"] * 1001}, "must have at most 1000 items"),
    ({"reconcileInterval": 4}, "should be greater than or equal to 5"),
    ({"workloadRef": {"kind": "Job", "name": "web"}}, "Unsupported value"),
    ({"cluster": "Eu"}, "should match"),
    ({"cloud": {"provider": "../x"}}, "should match"),
    ({"releasePolicy": "Delete"}, "Unsupported value"),
    ({"eviction": "Kill"}, "Unsupported value"),
    ({"cordonedHold": "5 minutes"}, "should match"),
    ({"notReadyGrace": "never"}, "should match"),
]


def test_wrong_allocations_are_refused(api: Api) -> None:
    """The message names what is wrong; without that, the allocation is right."""
    for spec, why in REFUSED:
        with pytest.raises(ApiRefused, match=why) as refused:
            api.post(KIND, allocation(**spec))
        assert refused.value.status == 422, spec
    api.post(KIND, allocation())


def test_spares_and_references_satisfy_the_rules(api: Api) -> None:
    """Fewer needed addresses than reserved ones are right, and either reference allows ForceDelete."""
    reference = {"kind": "DaemonSet", "name": "web"}
    api.post(KIND, allocation("spares", minAttached=0))
    api.post(KIND, allocation("all", minAttached=1))
    api.post(KIND, allocation("workload", eviction="ForceDelete", workloadRef=reference))
    api.post(KIND, allocation("deployment", eviction="ForceDelete", deploymentRef={"name": "web"}))
    api.post(KIND, allocation("evict", eviction="Evict"))
    stored = [each["metadata"]["name"] for each in api.list(KIND)]
    assert stored == ["all", "deployment", "evict", "spares", "workload"]


def test_kubectl_shows_the_columns(api: Api, hub_cluster: ApiServer) -> None:
    """`kubectl get nia` shows provider, cluster, numbers, and state and reason of the condition Ready."""
    assert "nia" in str(api.get("/apis/netinfra.darkbrains.com/v1alpha1")["resources"][0]["shortNames"])
    made = api.post(KIND, allocation(cloud={"provider": "gcp"}))
    ready = {"type": "Ready", "status": "False", "reason": "WaitingForNodes", "message": "no node"}
    conditions = [{**ready, "lastTransitionTime": "2026-11-21T03:07:41Z"}]
    status = {"cluster": "local", "reserved": 1, "attached": 0, "conditions": conditions}
    api.put(f"{KIND}/web/status", {**made, "status": status}, fieldValidation="Strict")
    names, [cells] = printed(hub_cluster)
    assert names == ["Name", "Provider", "Cluster", "Reserved", "Attached", "Ready", "Reason", "Age"]
    assert cells[:-1] == ["web", "gcp", "local", 1, 0, "False", "WaitingForNodes"]


def test_writing_the_status_needs_the_version_that_was_read(api: Api) -> None:
    """A status write of an older version is a conflict; writes of spec and of status leave each other alone."""
    made = api.post(KIND, allocation())
    api.put(f"{KIND}/web/status", {**made, "spec": {}, "status": {"writer": "hub-0"}})
    with pytest.raises(ApiRefused) as refused:
        api.put(f"{KIND}/web/status", {**made, "status": {"writer": "hub-1"}})
    assert refused.value.reason == "Conflict"
    changed = api.patch(f"{KIND}/web", {"spec": {"reconcileInterval": 60}, "status": {"writer": "me"}})
    assert changed["status"] == {"writer": "hub-0"}
    assert changed["spec"] == {**made["spec"], "reconcileInterval": 60}
