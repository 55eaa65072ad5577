"""The objects for a remote cluster: the permissions of the README, whichever way they are applied."""

from __future__ import annotations

import copy

import pytest
import yaml

from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.wire import NODES, SERVICES
from hub.observe.remote.identity import RULE
from hub.observe.remote.reading import SLICES_RULE
from hub.onboarding.manifests import (
    Access,
    cluster_of,
    has_wanted_fields,
    is_ours,
    manifests,
    manifests_with_script,
    place,
)

ACCESS = Access("eu", services=("ingress", "edge", "edge"), allocations=True, evictions=("edge",))


def rules(kind: str, name: str) -> list[str]:
    """The rules of a role in the notation of the hub's errors: ``resource name: verbs``."""
    found = [
        manifest for manifest in manifests(ACCESS) if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    ]
    written = set()
    for rule in (rule for manifest in found for rule in manifest["rules"]):
        (group,), name = rule["apiGroups"], " ".join(rule.get("resourceNames", ()))
        for resource in rule["resources"]:
            written.add(f"{resource}{group and '.'}{group}{name and ' '}{name}: {', '.join(rule['verbs'])}")
    return sorted(written)


def test_the_rights_are_those_that_the_hub_misses_by_name() -> None:
    """The permissions are those that the hub's errors name."""
    assert rules("ClusterRole", "endpointslice-hub-remote") == sorted([NODES.rule, RULE])
    assert rules("Role", "endpointslice-hub-remote") == sorted([SERVICES.rule, SLICES_RULE])
    assert rules("Role", "endpointslice-hub-token") == ["serviceaccounts/token endpointslice-hub: create"]


def test_everything_is_known_again() -> None:
    """All objects carry the labels with the hub's and the cluster's name; repeated namespaces count once."""
    made = manifests(ACCESS)
    assert all(is_ours(manifest) and cluster_of(manifest) == "eu" for manifest in made)
    assert [place(manifest) for manifest in made] == [
        "Namespace endpointslice-hub",
        "ServiceAccount endpointslice-hub/endpointslice-hub",
        "ClusterRole endpointslice-hub-remote",
        "ClusterRoleBinding endpointslice-hub-remote",
        "Role endpointslice-hub/endpointslice-hub-token",
        "RoleBinding endpointslice-hub/endpointslice-hub-token",
        "Role edge/endpointslice-hub-remote",
        "RoleBinding edge/endpointslice-hub-remote",
        "Role ingress/endpointslice-hub-remote",
        "RoleBinding ingress/endpointslice-hub-remote",
        "ClusterRole endpointslice-hub-allocations",
        "ClusterRoleBinding endpointslice-hub-allocations",
        "Role edge/endpointslice-hub-allocations",
        "RoleBinding edge/endpointslice-hub-allocations",
    ]


def test_two_hubs_have_two_roles_in_one_cluster() -> None:
    """Two hubs with different namespaces share no object in a cluster."""
    names = [{place(manifest) for manifest in manifests(Access("eu", namespace))} for namespace in ("hub-a", "hub-b")]
    assert not names[0] & names[1]


def test_server_fields_do_not_make_a_difference() -> None:
    """Fields that the API server adds do not make an object differ; a missing verb does."""
    wanted = manifests(ACCESS)[2]
    found = copy.deepcopy(wanted)
    found["metadata"] |= {"uid": "1", "annotations": {"a": "b"}}
    found["metadata"]["labels"]["more"] = "x"
    found["rules"][0]["resourceNames"] = None
    assert has_wanted_fields(found, wanted)
    found["rules"][0]["verbs"] = ["get"]
    assert not has_wanted_fields(found, wanted)


@pytest.mark.parametrize("namespace", ["endpointslice-hub", "edge-hub"])
def test_printed_yaml_equals_the_manifests(namespace: str) -> None:
    """The printed YAML is the manifests; its last command has --namespace unless it is the default."""
    access = Access("eu", namespace)
    text = manifests_with_script(access, "720h")
    assert list(yaml.safe_load_all(text)) == manifests(access)
    assert ("--namespace edge-hub" in text) == (namespace == "edge-hub")


@pytest.mark.parametrize("name", ["eu", "no", "123"])
def test_script_kubeconfig_is_valid_for_every_cluster_name(name: str) -> None:
    """The kubeconfig that the printed script writes is valid for every cluster name."""
    lines = [line[3:] for line in manifests_with_script(Access(name), "720h").splitlines() if line.startswith("#| ")]
    written = "\n".join(lines[lines.index(f"cat > {name}.kubeconfig <<EOF") + 1 : -1])

    found = parse_kubeconfig(
        written.replace("$SERVER", "https://eu:6443").replace("$CA", "").replace("$TOKEN", "t").encode(),
        origin="sent back",
        policy=KubeconfigPolicy(),
    )

    assert (found.server, found.origin) == ("https://eu:6443", f'sent back, context "{name}"')
