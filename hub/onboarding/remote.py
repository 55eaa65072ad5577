"""The steps in a remote cluster: create the account and its permissions, test its token, and delete all of it."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from hub.errors import ClusterUnreachable, Forbidden, HubError
from hub.kube.admin import Admin
from hub.kube.client import Client
from hub.kube.wire import NODES
from hub.model import Node
from hub.onboarding.manifests import (
    ACCOUNT,
    CLUSTER,
    SELECTOR,
    Access,
    Manifest,
    agrees,
    cluster_of,
    is_ours,
    manifests,
    place,
)
from hub.registry.spec import Network
from hub.runtime.clock import Clock

PAGE = "500"
SETTLE = 10.0
"""Seconds until all replicas of an API server apply a new role."""
AGAIN = 0.25


class Refused(HubError):
    """The command refuses to continue; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """What was done with one object, as it is printed, such as ``created`` or ``kept``."""

    what: str
    done: str


def in_remote(access: Access, error: HubError) -> HubError:
    """The error with the next step."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ClusterUnreachable):
        return HubError(f"cluster {access.cluster}: {error}; run this command where that address can be reached")
    if isinstance(error, Forbidden):
        return HubError(
            f"cluster {access.cluster}: {error.message or error}: this kubeconfig may not do that; use one of an "
            f"administrator, or have the cluster's owners apply: hub cluster add {access.cluster} --print-manifests"
        )
    return HubError(f"cluster {access.cluster}: {error}")


async def grant(admin: Admin, access: Access, steps: list[Step]) -> None:
    """Create or complete everything of :func:`~hub.onboarding.manifests.manifests`; unchanged if everything exists.

    Looks at everything before the first write.

    Args:
        admin: of the remote cluster.
        access: what is granted.
        steps: what was done is entered here, one by one.

    Raises:
        Refused: a name is taken, or a namespace is missing.
        HubError: the cluster refuses, or is not there.
    """
    wanted = manifests(access)
    try:
        await _namespaces(admin, access)
        found = [await _find(admin, manifest) for manifest in wanted]
        for existing in found:
            _check(existing, access)
        for pair in zip(wanted, found, strict=True):
            steps.append(await _put(admin, *pair))  # noqa: PERF401 - steps so far count if the next one fails
    except HubError as error:
        raise in_remote(access, error) from error


async def _find(admin: Admin, manifest: Manifest) -> Manifest | None:
    meta = manifest["metadata"]
    found = await admin.find(manifest["kind"], meta["name"], meta.get("namespace", ""))
    return {**found, "kind": manifest["kind"], "apiVersion": manifest["apiVersion"]} if found is not None else None


async def _namespaces(admin: Admin, access: Access) -> None:
    for name in access.services:
        if name != access.namespace and await admin.find("Namespace", name) is None:
            raise Refused(
                f"cluster {access.cluster} has no namespace {name}; create it, or leave it out of --allow-services"
            )


def _check(found: Manifest | None, access: Access) -> None:
    """Raises: Refused."""
    if found is None or (found["kind"] == "Namespace" and not is_ours(found)):
        return
    where = f"cluster {access.cluster}: {place(found)}"
    if not is_ours(found):
        raise Refused(f"{where} exists and is not of 'hub cluster add'; delete it, or choose another --namespace")
    if cluster_of(found) != access.cluster:
        raise Refused(
            f"{where} was made for the name {cluster_of(found) or '(none)'}: this is that cluster; "
            "use its name, or another --namespace for a second hub"
        )
    if found["metadata"].get("deletionTimestamp"):
        raise Refused(f"{where} is being deleted; wait until it is gone, or choose another --namespace")


async def _put(admin: Admin, wanted: Manifest, found: Manifest | None) -> Step:
    if found is None:
        await admin.create(wanted)
        return Step(place(wanted), "created")
    if wanted["kind"] == "Namespace" and not is_ours(found):
        return Step(place(wanted), "kept")
    if agrees(found, wanted):
        return Step(place(wanted), "unchanged")
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await admin.replace({**wanted, "metadata": {**wanted["metadata"], **version}})
    return Step(place(wanted), "updated")


async def more_rights(admin: Admin, access: Access) -> list[str]:
    """Namespaces whose Services the account may also read, from an earlier run, as far as Roles may be listed."""
    try:
        roles = await admin.labelled("Role", SELECTOR)
    except Forbidden:
        return []
    except HubError as error:
        raise in_remote(access, error) from error
    given = {role["metadata"]["namespace"] for role in roles if role["metadata"]["name"] == access.role}
    return sorted(given - set(access.services))


async def nodes(client: Client, access: Access, clock: Clock, patience: float = SETTLE) -> list[Node]:
    """All Nodes, read as the hub reads them: the proof that the account works.

    Args:
        client: of the account.
        access: what it was given.
        clock: where time comes from.
        patience: seconds during which a refusal may mean that the rights are too new.

    Raises:
        HubError: it does not work.
    """
    until = clock.now() + patience
    while True:
        try:
            return await _nodes(client)
        except Forbidden as error:
            if clock.now() >= until:
                raise in_remote(access, error) from error
        except HubError as error:
            raise in_remote(access, error) from error
        await clock.sleep(AGAIN)


async def _nodes(client: Client) -> list[Node]:
    found: list[Node] = []
    params = {"limit": PAGE}
    while True:
        page, _, token = NODES.list_page(await client.request("GET", NODES.path, params=params))
        found += page.values()
        if not token or token == params.get("continue"):
            return found
        params["continue"] = token
        await asyncio.sleep(0)


def addresses(found: Sequence[Node]) -> list[str]:
    """The internal addresses that the Nodes report."""
    return [address.address for node in found for address in node.addresses if address.type == "InternalIP"]


def outside(found: Sequence[str], networks: Sequence[Network]) -> list[str]:
    """Addresses that are in none of these networks, and texts that are not addresses."""
    return [text for text in found if not any(_inside(text, network) for network in networks)]


def _inside(address: str, network: Network) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False


async def withdraw(admin: Admin, access: Access, steps: list[Step], *, apply: bool) -> None:
    """Delete what ``grant`` made, in every namespace; objects of others stay, and so does a namespace that they use.

    Args:
        admin: of the remote cluster.
        access: what is withdrawn.
        steps: what was done is entered here, one by one.
        apply: do it; else only look.

    Raises:
        HubError: the cluster refuses, or is not there.
    """
    try:
        for leftover in await leftovers(admin, access):
            steps.append(await _remove(admin, leftover, apply=apply))  # noqa: PERF401 - likewise
    except HubError as error:
        raise in_remote(access, error) from error


async def leftovers(admin: Admin, access: Access) -> list[Manifest]:
    """The existing objects of ``grant``, permissions first, the namespace last."""
    namespaces = {
        role["metadata"]["namespace"]
        for role in await admin.labelled("Role", SELECTOR)
        if role["metadata"]["name"] == access.role
    }
    every = manifests(Access(access.cluster, access.namespace, tuple(sorted(namespaces))))
    found = [await _find(admin, manifest) for manifest in reversed(every)]
    return [
        existing
        for existing in found
        if existing is not None and is_ours(existing) and cluster_of(existing) == access.cluster
    ]


async def _remove(admin: Admin, found: Manifest, *, apply: bool) -> Step:
    meta = found["metadata"]
    if found["kind"] == "Namespace" and await _lived_in(admin, meta["name"]):
        return Step(place(found), "kept")
    if not apply:
        return Step(place(found), "to be deleted")
    gone = await admin.delete(found["kind"], meta["name"], meta.get("namespace", ""))
    return Step(place(found), "deleted" if gone else "absent")


async def _lived_in(admin: Admin, namespace: str) -> bool:
    """Whether others use a namespace that was made for the account, as a hub of that cluster's own may by default.

    What nobody lets us see counts as there.
    """
    try:
        others = {*await admin.some("ServiceAccount", namespace)} - {ACCOUNT, "default"}
        return bool(others or await admin.some("Pod", namespace))
    except Forbidden:
        return True


def by_hand(access: Access) -> list[str]:
    """The commands that delete everything, for a user with access."""
    namespace, account = access.account
    return [
        f"kubectl delete clusterrolebinding,clusterrole {access.role}",
        f"kubectl delete rolebinding,role -A -l {SELECTOR},{CLUSTER}={access.cluster}",
        f"kubectl delete serviceaccount {account} -n {namespace}",
        f"kubectl delete namespace {namespace}   # if nothing else uses it",
    ]
