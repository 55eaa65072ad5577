"""Carries out ``hub approve``: finds what is withheld, and writes approvals."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import click

from hub.cli.exits import Exit
from hub.cli.observe import suggestion
from hub.cli.operations import hub_cluster, slices_of
from hub.cli.render import table, warn
from hub.cli.server import Server, fetch
from hub.decide.record import decode
from hub.errors import ApiError, HubError
from hub.model import ANNOTATION_STATE
from hub.observe.local import approvals
from hub.report.values import Status
from hub.runtime.clock import SystemClock, rfc3339

COLUMNS: Final = ("SUBJECT", "HASH", "SINCE", "APPROVE WITH")
COMMAND: Final = re.compile(r"hub approve (\S+) ([0-9a-f]{8,64})")
"""The command in messages about clusters, which have no field for it."""


@dataclass(frozen=True, slots=True)
class Withholding:
    """Where to find what a hub withholds.

    Attributes:
        kubeconfig: access to the hub cluster; None = in-cluster, then the environment.
        namespace: the hub's namespace.
        owner: the hub's owner.
        target_namespaces: namespaces of the hub's Services; empty = all.
        server: a running hub; None = read the slices only.
    """

    kubeconfig: str | None
    namespace: str
    owner: str
    target_namespaces: Sequence[str] = ()
    server: Server | None = None


@dataclass(frozen=True, slots=True, order=True)
class Removal:
    """A removal that waits for an approval; ``since`` is RFC 3339, or "" if it is not known."""

    subject: str
    hash: str
    since: str = ""


async def list_withheld(where: Withholding) -> int:
    """Print what is withheld, with the commands that approve it; returns the exit code.

    Raises:
        HubError: neither a leading hub nor the slices can be read.
    """
    where, leader = await _asked(where)
    if leader is None:
        warn("only removals of Services are listed: no leading hub was asked (--server)")
    found = _of_leader(leader) if leader is not None else await _of_slices(where, where.target_namespaces)
    if not found:
        click.echo("nothing is withheld")
        return Exit.OK
    flags = approvals.flags(where.owner, where.namespace)
    rows = [
        (removal.subject, removal.hash, removal.since, f"hub approve {removal.subject} {removal.hash}{flags}")
        for removal in sorted(found)
    ]
    click.echo(table(COLUMNS, rows))
    return Exit.OK


async def approve_one(where: Withholding, subject: str, name: str, *, force: bool) -> int:
    """Write an approval, unless it is known that nothing with this hash is withheld; returns the exit code.

    Raises:
        HubError: the approval could not be written.
    """
    where, leader = await _asked(where)
    # First, because a running hub acts on the approval and forgets the removal.
    found = None if force else await _known(where, leader, subject)
    if found is not None and (subject, name) not in {(removal.subject, removal.hash) for removal in found}:
        click.echo(f"Error: {_unknown(subject, name, found)}", err=True)
        return Exit.CHANGES
    async with hub_cluster(where.kubeconfig) as client:
        what, wall = approvals.subject(subject), SystemClock().wall()
        approval = await approvals.approve(client, where.namespace, where.owner, name, what, _user_at_host(), wall)
    stored = f"ConfigMap {where.namespace}/{approvals.config_map(where.owner)}"
    click.echo(f"{subject}: {name} is approved until {rfc3339(approval.expires.timestamp())} ({stored})")
    return Exit.OK


def _unknown(subject: str, name: str, found: Iterable[Removal]) -> str:
    """The message about a hash that stands for nothing; it says what is withheld."""
    hashes = sorted(removal.hash for removal in found if removal.subject == subject)
    others = sorted({removal.subject for removal in found} - {subject})
    hint = suggestion(name, hashes) or "".join(
        f"; withheld {where}: {', '.join(names)}" for where, names in (("here", hashes), ("elsewhere", others)) if names
    )
    return f"{subject}: no removal with the hash {name} is withheld{hint} (--force approves it all the same)"


async def _known(where: Withholding, leader: Status | None, subject: str) -> set[Removal] | None:
    """What is withheld; None with a warning if that cannot be found out for this kind of subject."""
    kind, target = approvals.subject(subject)
    if leader is not None:
        return _of_leader(leader)
    if kind != "service":
        warn("the hash was not checked: no leading hub was asked (--server)")
        return None
    try:
        return await _of_slices(where, [target.partition("/")[0]])
    except ApiError as error:  # the right to approve does not include the right to read slices
        warn(f"the hash was not checked: {error}")
        return None


async def _asked(where: Withholding) -> tuple[Withholding, Status | None]:
    """The same with the owner of the running hub, and its state; None if none answers, or not the only leader."""
    if where.server is None:
        return where, None
    try:
        status = await fetch(where.server, "/api/v1/status", Status)
    except HubError as error:
        warn(f"the running hub was not asked: {error}")
        return where, None
    owner = status.hub.owner
    if owner and owner != where.owner:
        warn(f"the running hub has the owner {owner}, which is used instead of {where.owner}")
        where = replace(where, owner=owner)
    leads = status.hub.role == "leader" and status.hub.shard_count == 1
    return where, status if leads else None


def _of_leader(status: Status) -> set[Removal]:
    """What the running hub says that it withholds."""
    found = {Removal(service.name, held.hash, held.since) for service in status.services for held in service.withheld}
    if status.registry.withheld is not None:
        found.add(Removal("registry", status.registry.withheld.hash))
    for allocation in status.allocations.allocations if status.allocations is not None else ():
        withheld = {address.hash: address.since for address in reversed(allocation.addresses) if address.hash}
        found |= {Removal(f"allocation/{allocation.name}", name, since) for name, since in withheld.items()}
    for cloud in status.clouds or ():
        texts = [cloud.approve, *(finding.message for each in cloud.balancers for finding in each.findings)]
        found |= {Removal(*parts) for text in texts for parts in COMMAND.findall(text)}
    return found | {Removal(*parts) for cluster in status.clusters for parts in COMMAND.findall(cluster.error)}


async def _of_slices(where: Withholding, namespaces: Sequence[str]) -> set[Removal]:
    """What hubs have noted on their slices, in some namespaces or in all.

    Raises:
        HubError: the slices cannot be read.
    """
    found = set()
    async with hub_cluster(where.kubeconfig) as client:
        for namespace in namespaces or [""]:
            for slice_ in await slices_of(client, where.owner, namespace):
                record = decode(slice_.annotations.get(ANNOTATION_STATE, ""))
                if record.hash:
                    found.add(Removal(str(slice_.target), record.hash, rfc3339(record.since)))
    return found


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user, as in many containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
