"""The steps of ``hub cluster add`` and ``hub cluster remove`` in a remote cluster."""

from __future__ import annotations

import copy
import ipaddress
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from hub.errors import ClusterUnreachable, Forbidden, HubError, NotFound
from hub.model import Node, NodeAddress
from hub.onboarding.manifests import ACCOUNT, CLUSTER, SELECTOR, Access, Manifest, manifests, place
from hub.onboarding.remote import (
    RETRY_INTERVAL,
    Refused,
    Step,
    addresses,
    grant,
    in_remote,
    leftovers,
    more_rights,
    nodes,
    outside,
    removal_commands,
    withdraw,
)
from tests.support.clocks import ManualClock

ACCESS = Access("eu")
NAMESPACE = Step("Namespace endpointslice-hub", "kept")


class Cluster:
    """An admin client of a cluster that has the objects of an access and these other ones, as (kind, name)."""

    def __init__(self, *others: tuple[str, str], granted: Access | None = ACCESS) -> None:
        self.granted = {place(manifest): manifest for manifest in (manifests(granted) if granted is not None else ())}
        for manifest in self.granted.values():
            manifest["metadata"]["resourceVersion"] = "7"
        self._others = others
        self.forbidden: set[str] = set()

    async def find(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """Read an object."""
        return self.granted.get(f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}")

    async def list_labelled(self, kind: str, selector: str) -> list[Manifest]:
        """List the objects of a kind; the selector is the one that they all match."""
        assert selector == SELECTOR
        self._check(kind)
        return [manifest for manifest in self.granted.values() if manifest["kind"] == kind]

    async def some_names(self, kind: str, namespace: str) -> list[str]:
        """List the names of the objects of a kind that the namespace of the account has."""
        assert namespace == ACCESS.namespace
        self._check(kind)
        own = ["default", ACCOUNT] if kind == "ServiceAccount" else []
        return own + [name for kind_, name in self._others if kind_ == kind]

    async def create(self, manifest: Manifest) -> None:
        """Create an object."""
        assert place(manifest) not in self.granted
        self.granted[place(manifest)] = manifest

    async def replace(self, manifest: Manifest) -> None:
        """Replace an object of the same version."""
        assert self.granted[place(manifest)]["metadata"]["resourceVersion"] == manifest["metadata"]["resourceVersion"]
        self.granted[place(manifest)] = manifest

    async def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """Delete an object."""
        return self.granted.pop(f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}", None) is not None

    def _check(self, kind: str) -> None:
        if kind in self.forbidden:
            raise Forbidden(403, "Forbidden", "no")


async def granted(cluster: Cluster, access: Access = ACCESS) -> list[Step]:
    """The steps of a grant."""
    steps: list[Step] = []
    await grant(cast("Any", cluster), access, steps)
    return steps


async def test_all_objects_are_created_once() -> None:
    """The first run creates every object, and the second one writes nothing."""
    cluster = Cluster(granted=None)
    places = [place(manifest) for manifest in manifests(ACCESS)]
    assert await granted(cluster) == [Step(each, "created") for each in places]
    assert list(cluster.granted.values()) == manifests(ACCESS)
    assert await granted(cluster) == [Step(each, "unchanged") for each in places]


async def test_namespace_of_others_is_kept_and_changed_objects_are_updated() -> None:
    """A namespace that somebody else made is used as it is; an object of ours that differs is replaced."""
    cluster = Cluster()
    cluster.granted["Namespace endpointslice-hub"]["metadata"]["labels"] = {"team": "a"}
    cluster.granted["Namespace endpointslice-hub"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    role = "ClusterRole endpointslice-hub-remote"
    cluster.granted[role]["rules"] = []
    steps = await granted(cluster)
    assert [step for step in steps if step.done != "unchanged"] == [NAMESPACE, Step(role, "updated")]
    wanted = next(manifest for manifest in manifests(ACCESS) if place(manifest) == role)
    assert cluster.granted[role]["rules"] == wanted["rules"]
    assert cluster.granted["Namespace endpointslice-hub"]["metadata"]["labels"] == {"team": "a"}


ROLE = "ClusterRole endpointslice-hub-remote"
OTHER_NAME = ": this is that cluster; use its name, or another --namespace for a second hub"


@pytest.mark.parametrize(
    ("what", "change", "message"),
    [
        (
            ROLE,
            lambda meta: meta.pop("labels"),
            "exists and was not made by 'hub cluster add'; delete it, or choose another --namespace",
        ),
        (ROLE, lambda meta: meta["labels"].update({CLUSTER: "us"}), f"was made for the name us{OTHER_NAME}"),
        (ROLE, lambda meta: meta["labels"].pop(CLUSTER), f"was made for the name (none){OTHER_NAME}"),
        (
            "Namespace endpointslice-hub",
            lambda meta: meta.update(deletionTimestamp="2026-01-01T00:00:00Z"),
            "is being deleted; wait until it is gone, or choose another --namespace",
        ),
    ],
)
async def test_objects_of_others_are_not_changed(what: str, change: Callable[[Any], object], message: str) -> None:
    """An object that is not ours, is another cluster's, or is being deleted ends the command before the first write."""
    cluster = Cluster()
    change(cluster.granted[what]["metadata"])
    before = copy.deepcopy(cluster.granted)
    with pytest.raises(Refused) as caught:
        await granted(cluster)
    assert str(caught.value) == f"cluster eu: {what} {message}"
    assert cluster.granted == before


async def test_namespaces_of_services_must_exist() -> None:
    """A namespace whose Services are to be read must exist; that of the account is created."""
    cluster = Cluster(granted=None)
    with pytest.raises(Refused, match="cluster eu has no namespace team; create it, or leave it out of --allow-serv"):
        await granted(cluster, Access("eu", services=("endpointslice-hub", "team")))
    assert cluster.granted == {}
    cluster.granted["Namespace team"] = {"kind": "Namespace", "metadata": {"name": "team"}}
    steps = await granted(cluster, Access("eu", services=("endpointslice-hub", "team")))
    assert {step.done for step in steps} == {"created"}


async def test_namespaces_of_evictions_must_exist() -> None:
    """A namespace whose Pods may be evicted must exist; nothing is written before that is known."""
    cluster = Cluster(granted=None)
    with pytest.raises(Refused, match="cluster eu has no namespace team; create it, or leave it out of --allow-evict"):
        await granted(cluster, Access("eu", allocations=True, evictions=("team",)))
    assert cluster.granted == {}


async def test_rights_of_earlier_runs_are_reported() -> None:
    """What an earlier run allowed and this one does not is listed, if roles may be read."""
    earlier = Access("eu", services=("b", "a", "kept"), allocations=True, evictions=("a", "kept"))
    cluster = Cluster(granted=earlier)
    assert await more_rights(cast("Any", cluster), earlier) == []
    kept = Access("eu", services=("kept",), evictions=("kept",))
    assert await more_rights(cast("Any", cluster), kept) == [
        "read Services in a, b",
        "change labels of Nodes",
        "evict Pods in a",
    ]
    cluster.forbidden = {"Role"}
    assert await more_rights(cast("Any", cluster), ACCESS) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Refused("no"), "no"),
        (ClusterUnreachable("no answer"), "cluster eu: no answer; run this command where that address can be reached"),
        (
            Forbidden(403, "Forbidden", "you may not"),
            (
                "cluster eu: you may not: this kubeconfig may not do that; use one of an administrator, or have the "
                "cluster's owners apply: hub cluster add eu --print-manifests"
            ),
        ),
        (HubError("broken"), "cluster eu: broken"),
    ],
)
def test_errors_name_the_cluster_and_the_next_step(error: HubError, message: str) -> None:
    """Errors of the remote cluster name it, and say what to do."""
    assert str(in_remote(ACCESS, error)) == message


class Pages:
    """A client that answers the requests for Nodes with these answers, and the parameters that it was given."""

    def __init__(self, *answers: bytes | HubError) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, str]] = []

    async def request(self, method: str, path: str, *, params: dict[str, str]) -> bytes:
        """Answer a request."""
        assert (method, path) == ("GET", "/api/v1/nodes")
        self.asked.append(dict(params))
        answer = self._answers.pop(0)
        if isinstance(answer, HubError):
            raise answer
        return answer


def page(name: str, following: str = "") -> bytes:
    """A page with one Node."""
    meta = {"resourceVersion": "1", **({"continue": following} if following else {})}
    items = [{"metadata": {"name": name}}]
    return json.dumps({"kind": "NodeList", "apiVersion": "v1", "metadata": meta, "items": items}).encode()


async def test_all_pages_of_nodes_are_read() -> None:
    """All pages are read; a server that repeats a page is not asked for ever."""
    client = Pages(page("n1", "a"), page("n2"))
    found = await nodes(cast("Any", client), ACCESS, ManualClock())
    assert [node.name for node in found] == ["n1", "n2"]
    assert client.asked == [{"limit": "500"}, {"limit": "500", "continue": "a"}]
    repeating = Pages(page("n1", "a"), page("n2", "a"))
    assert len(await nodes(cast("Any", repeating), ACCESS, ManualClock())) == 2


async def test_a_new_role_is_waited_for() -> None:
    """A 403 is retried for a while, since the role may be too new; any other error is not."""
    forbidden = Forbidden(403, "Forbidden", "not yet")
    clock = ManualClock()
    client = Pages(forbidden, forbidden, page("n1"))
    assert len(await nodes(cast("Any", client), ACCESS, clock, patience=2 * RETRY_INTERVAL)) == 1
    for answers in ([forbidden] * 3, [NotFound(404, "NotFound", "gone")]):
        client = Pages(*answers)
        with pytest.raises(HubError, match="cluster eu: "):
            await nodes(cast("Any", client), ACCESS, ManualClock(), patience=2 * RETRY_INTERVAL)
        assert len(client.asked) == len(answers)


def test_addresses_outside_of_networks_are_listed() -> None:
    """Only InternalIPs count; what is in no network, or is no address, is outside."""
    found = [
        Node("n1", addresses=(NodeAddress("Hostname", "n1"), NodeAddress("InternalIP", "10.0.0.1"))),
        Node("n2", addresses=(NodeAddress("InternalIP", "10.1.0.1"), NodeAddress("InternalIP", "x"))),
    ]
    assert addresses(found) == ["10.0.0.1", "10.1.0.1", "x"]
    assert outside(addresses(found), [ipaddress.ip_network("10.0.0.0/24")]) == ["10.1.0.1", "x"]


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ((), []),
        ((("ServiceAccount", "other"),), [NAMESPACE]),
        ((("Pod", "debug"),), [NAMESPACE]),
    ],
)
async def test_a_namespace_that_others_use_is_kept(others: tuple[Any, ...], kept: list[Step]) -> None:
    """The namespace stays if it has another ServiceAccount or a Pod, and all other objects are deleted."""
    cluster, steps = Cluster(*others), list[Step]()

    await withdraw(cast("Any", cluster), ACCESS, steps, apply=True)

    assert [step for step in steps if step.done != "deleted"] == kept
    assert list(cluster.granted) == [step.what for step in kept]


async def test_a_namespace_whose_pods_may_not_be_listed_is_kept() -> None:
    """The namespace stays if it is not known who else uses it."""
    cluster, steps = Cluster(), list[Step]()
    cluster.forbidden = {"Pod"}
    await withdraw(cast("Any", cluster), ACCESS, steps, apply=True)
    assert list(cluster.granted) == [NAMESPACE.what]


async def test_without_apply_nothing_is_deleted() -> None:
    """Without ``--apply``, the objects are only listed, Roles of earlier runs and the namespace included."""
    access = Access("eu", services=("team",), allocations=True, evictions=("team",))
    cluster, steps = Cluster(granted=access), list[Step]()
    cluster.granted[ROLE]["metadata"]["labels"] = {}
    await withdraw(cast("Any", cluster), ACCESS, steps, apply=False)
    ours = [each for each in reversed([place(manifest) for manifest in manifests(access)]) if each != ROLE]
    assert steps == [Step(each, "to be deleted") for each in ours]
    assert len(cluster.granted) == len(manifests(access))


async def test_objects_of_other_clusters_are_no_leftovers() -> None:
    """Objects of another cluster and Roles with other names are not deleted."""
    cluster = Cluster(granted=Access("us"))
    assert await leftovers(cast("Any", cluster), ACCESS) == []


def test_commands_for_the_owners_of_the_cluster() -> None:
    """The commands delete everything that ``hub cluster add`` made."""
    chosen = f"-l {SELECTOR},endpointslice-hub/cluster=eu"
    assert removal_commands(ACCESS) == [
        f"kubectl delete clusterrolebinding,clusterrole {chosen}",
        f"kubectl delete validatingadmissionpolicybinding,validatingadmissionpolicy {chosen}",
        f"kubectl delete rolebinding,role -A {chosen}",
        "kubectl delete serviceaccount endpointslice-hub -n endpointslice-hub",
        "kubectl delete namespace endpointslice-hub   # if nothing else uses it",
    ]
