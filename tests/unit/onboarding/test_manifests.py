"""What a remote cluster is asked for: no more than the README says, and the same however it is asked."""

from __future__ import annotations

import copy

import pytest
import yaml

from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.wire import NODES, SERVICES
from hub.observe.remote.identity import RULE
from hub.observe.remote.reading import SLICES_RULE
from hub.onboarding.manifests import Access, agrees, cluster_of, handed_over, is_ours, manifests, place

ACCESS = Access("eu", services=("ingress", "edge", "edge"))


def rules(kind: str, name: str) -> list[str]:
    """As the hub's errors write them: resource, name: verbs."""
    found = [each for each in manifests(ACCESS) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    written = set()
    for rule in (rule for each in found for rule in each["rules"]):
        (group,), (resource,), name = rule["apiGroups"], rule["resources"], " ".join(rule.get("resourceNames", ()))
        written.add(f"{resource}{group and '.'}{group}{name and ' '}{name}: {', '.join(rule['verbs'])}")
    return sorted(written)


def test_the_rights_are_those_that_the_hub_misses_by_name() -> None:
    """Nodes and the identity cluster-wide; Services in their namespaces; tokens of the account itself."""
    assert rules("ClusterRole", "endpointslice-hub-remote") == sorted([NODES.rule, RULE])
    assert rules("Role", "endpointslice-hub-remote") == sorted([SERVICES.rule, SLICES_RULE])
    assert rules("Role", "endpointslice-hub-token") == ["serviceaccounts/token endpointslice-hub: create"]


def test_everything_is_known_again() -> None:
    """By label and the cluster's name; a role and its binding in each namespace, once."""
    made = manifests(ACCESS)
    assert all(is_ours(each) and cluster_of(each) == "eu" for each in made)
    assert [place(each) for each in made] == [
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
    ]


def test_two_hubs_have_two_roles_in_one_cluster() -> None:
    """Their namespaces tell them apart."""
    names = [{place(each) for each in manifests(Access("eu", namespace))} for namespace in ("hub-a", "hub-b")]
    assert not names[0] & names[1]


def test_what_the_api_server_adds_does_not_matter() -> None:
    """A missing verb or another subject does."""
    wanted = manifests(ACCESS)[2]
    found = copy.deepcopy(wanted)
    found["metadata"] |= {"uid": "1", "annotations": {"a": "b"}}
    found["metadata"]["labels"]["more"] = "x"
    found["rules"][0]["resourceNames"] = None
    assert agrees(found, wanted)
    found["rules"][0]["verbs"] = ["get"]
    assert not agrees(found, wanted)


@pytest.mark.parametrize("namespace", ["endpointslice-hub", "edge-hub"])
def test_what_is_handed_over_is_what_is_applied(namespace: str) -> None:
    """The YAML is the manifests; the command it ends with names the namespace where that is another."""
    access = Access("eu", namespace)
    text = handed_over(access, "720h")
    assert list(yaml.safe_load_all(text)) == manifests(access)
    assert ("--namespace edge-hub" in text) == (namespace == "edge-hub")


@pytest.mark.parametrize("name", ["eu", "no", "123"])
def test_what_is_sent_back_can_be_read_whatever_the_cluster_is_called(name: str) -> None:
    """The kubeconfig that the script writes is one, also where the name would be no text without quotes."""
    lines = [line[3:] for line in handed_over(Access(name), "720h").splitlines() if line.startswith("#| ")]
    written = "\n".join(lines[lines.index(f"cat > {name}.kubeconfig <<EOF") + 1 : -1])

    found = parse_kubeconfig(
        written.replace("$SERVER", "https://eu:6443").replace("$CA", "").replace("$TOKEN", "t").encode(),
        origin="sent back",
        policy=KubeconfigPolicy(),
    )

    assert (found.server, found.origin) == ("https://eu:6443", f'sent back, context "{name}"')
