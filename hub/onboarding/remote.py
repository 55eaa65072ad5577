"""The steps in a remote cluster: creates the account and its permissions, tests its token, and deletes all of it."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from hub.errors import ClusterUnreachable, Forbidden, HubError, NotFound
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
    cluster_of,
    has_wanted_fields,
    is_ours,
    manifests,
    place,
)
from hub.registry.spec import Network
from hub.runtime.clock import Clock

PAGE = "500"
"""Nodes per list request; the page size of client-go and kubectl."""
SETTLE = 10.0
"""Seconds within which all replicas of an API server apply a new role."""
RETRY_INTERVAL = 0.25
"""Seconds between attempts while a new role may not be applied yet."""


class Refused(HubError):
    """The command refuses to continue; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """An object and what was done with it, as printed, such as ``created`` or ``kept``."""

    what: str
    done: str


def in_remote(access: Access, error: HubError) -> HubError:
    """The error with the cluster's name and the next step for the user; a Refused is returned unchanged."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ClusterUnreachable):
        return HubError(f"cluster {access.cluster}: {error}; run this command where that address can be reached")
    if isinstance(error, NotFound) and "ValidatingAdmissionPolicy" in str(error):
        return HubError(
            f"cluster {access.cluster} has no ValidatingAdmissionPolicies, which Kubernetes 1.30 and later have: "
            "give --without-policy"
        )
    if isinstance(error, Forbidden):
        return HubError(
            f"cluster {access.cluster}: {error.message or error}: this kubeconfig may not do that; use one of an "
            f"administrator, or have the cluster's owners apply: hub cluster add {access.cluster} --print-manifests"
        )
    return HubError(f"cluster {access.cluster}: {error}")


async def grant(admin: Admin, access: Access, steps: list[Step]) -> None:
    """Create or complete all objects of :func:`~hub.onboarding.manifests.manifests`.

    All checks come before the first write. If everything exists already, nothing is written.

    Args:
        admin: of the remote cluster.
        access: the account and its permissions.
        steps: receives a step for each object as soon as it is done.

    Raises:
        Refused: a name is taken, or a namespace is missing; nothing was written.
        HubError: the cluster refuses or does not answer.
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
    """The existing object with the kind and name of a manifest; None if there is none."""
    meta = manifest["metadata"]
    found = await admin.find(manifest["kind"], meta["name"], meta.get("namespace", ""))
    return {**found, "kind": manifest["kind"], "apiVersion": manifest["apiVersion"]} if found is not None else None


async def _namespaces(admin: Admin, access: Access) -> None:
    """Raise Refused if a namespace of ``access.services`` or ``access.evictions`` does not exist."""
    options = {
        **dict.fromkeys(access.evictions, "--allow-evictions"),
        **dict.fromkeys(access.services, "--allow-services"),
    }
    for name, option in options.items():
        if name != access.namespace and await admin.find("Namespace", name) is None:
            raise Refused(f"cluster {access.cluster} has no namespace {name}; create it, or leave it out of {option}")


def _check(found: Manifest | None, access: Access) -> None:
    """Raise Refused if an existing object is not ours, was made for another cluster, or is being deleted."""
    if found is None or (found["kind"] == "Namespace" and not is_ours(found)):
        return
    where = f"cluster {access.cluster}: {place(found)}"
    if not is_ours(found):
        raise Refused(f"{where} exists and was not made by 'hub cluster add'; delete it, or choose another --namespace")
    if cluster_of(found) != access.cluster:
        raise Refused(
            f"{where} was made for the name {cluster_of(found) or '(none)'}: this is that cluster; "
            "use its name, or another --namespace for a second hub"
        )
    if found["metadata"].get("deletionTimestamp"):
        raise Refused(f"{where} is being deleted; wait until it is gone, or choose another --namespace")


async def _put(admin: Admin, wanted: Manifest, found: Manifest | None) -> Step:
    """Create or update one object as needed. A namespace that is not ours stays unchanged."""
    if found is None:
        await admin.create(wanted)
        return Step(place(wanted), "created")
    if wanted["kind"] == "Namespace" and not is_ours(found):
        return Step(place(wanted), "kept")
    if has_wanted_fields(found, wanted):
        return Step(place(wanted), "unchanged")
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await admin.replace({**wanted, "metadata": {**wanted["metadata"], **version}})
    return Step(place(wanted), "updated")


async def more_rights(admin: Admin, access: Access) -> list[str]:
    """What the account may do since an earlier run, beyond ``access``, such as ``read Services in a, b``.

    Empty if roles may not be read.
    """
    try:
        labels = not access.allocations and await admin.find("ClusterRole", access.allocations_role) is not None
        services = await _role_namespaces(admin, access.role) - set(access.services)
        evictions = await _role_namespaces(admin, access.allocations_role) - set(access.evictions)
        cloud = not access.cloud and await admin.find("ClusterRole", access.cloud_role) is not None
    except Forbidden:
        return []
    except HubError as error:
        raise in_remote(access, error) from error
    return [
        *([f"read Services in {', '.join(sorted(services))}"] if services else ()),
        *(["change labels of Nodes"] if labels else ()),
        *([f"evict Pods in {', '.join(sorted(evictions))}"] if evictions else ()),
        *(["be its cloud controller"] if cloud else ()),
    ]


async def _role_namespaces(admin: Admin, name: str) -> set[str]:
    """The namespaces that have a Role of ours with this name."""
    roles = await admin.list_labelled("Role", SELECTOR)
    return {role["metadata"]["namespace"] for role in roles if role["metadata"]["name"] == name}


async def nodes(client: Client, access: Access, clock: Clock, patience: float = SETTLE) -> list[Node]:
    """Read all Nodes as the hub reads them, which proves that the account works.

    Args:
        client: of the account.
        access: the account and its permissions.
        clock: source of time.
        patience: seconds during which a 403 is retried, since the permissions may be too new.

    Raises:
        HubError: the Nodes cannot be read.
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
        await clock.sleep(RETRY_INTERVAL)


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
    """The addresses of type InternalIP of the Nodes."""
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
    """Delete all objects that ``grant`` made. Objects of others stay, and so does a namespace that they use.

    Args:
        admin: of the remote cluster.
        access: the account and its permissions.
        steps: receives a step for each object as soon as it is done.
        apply: False = only report what would be deleted.

    Raises:
        HubError: the cluster refuses or does not answer.
    """
    try:
        for leftover in await leftovers(admin, access):
            steps.append(await _remove(admin, leftover, apply=apply))  # noqa: PERF401 - as in grant
    except HubError as error:
        raise in_remote(access, error) from error


async def leftovers(admin: Admin, access: Access) -> list[Manifest]:
    """The objects of ``grant`` that exist, in the order of deletion: permissions first, the namespace last.

    Roles that an earlier run made in other namespaces are included.
    """
    from hub.controller.rights import PART_RULES

    services = tuple(await _role_namespaces(admin, access.role))
    evictions = tuple(await _role_namespaces(admin, access.allocations_role))
    every = manifests(
        Access(
            access.cluster,
            access.namespace,
            services=services,
            allocations=True,
            evictions=evictions,
            cloud=tuple(PART_RULES),
            provider_ids=("any",),
        )
    )
    found = [await _find(admin, manifest) for manifest in reversed(every)]
    return [
        existing
        for existing in found
        if existing is not None and is_ours(existing) and cluster_of(existing) == access.cluster
    ]


async def _remove(admin: Admin, found: Manifest, *, apply: bool) -> Step:
    meta = found["metadata"]
    if found["kind"] == "Namespace" and await _used_by_others(admin, meta["name"]):
        return Step(place(found), "kept")
    if not apply:
        return Step(place(found), "to be deleted")
    gone = await admin.delete(found["kind"], meta["name"], meta.get("namespace", ""))
    return Step(place(found), "deleted" if gone else "absent")


async def _used_by_others(admin: Admin, namespace: str) -> bool:
    """Whether the account's namespace is used for anything else, such as a hub that runs in that cluster.

    True if Pods or ServiceAccounts may not be listed.
    """
    try:
        others = {*await admin.some_names("ServiceAccount", namespace)} - {ACCOUNT, "default"}
        return bool(others or await admin.some_names("Pod", namespace))
    except Forbidden:
        return True


def removal_commands(access: Access) -> list[str]:
    """The commands with which an administrator of the remote cluster deletes all objects of ``grant``."""
    namespace, account = access.account
    chosen = f"-l {SELECTOR},{CLUSTER}={access.cluster}"
    return [
        f"kubectl delete clusterrolebinding,clusterrole {chosen}",
        f"kubectl delete validatingadmissionpolicybinding,validatingadmissionpolicy {chosen}",
        f"kubectl delete rolebinding,role -A {chosen}",
        f"kubectl delete serviceaccount {account} -n {namespace}",
        f"kubectl delete namespace {namespace}   # if nothing else uses it",
    ]
