"""Functions for commands that read all clusters once and write nothing; and ``hub plan``, the first of them."""

from __future__ import annotations

from collections.abc import Iterable

from hub.app.hub import Hub, Options, assemble
from hub.app.oneshot import observing
from hub.cli.changes import print_plan
from hub.cli.controlled import unknown as unknown_cloud
from hub.cli.controlled import warn_of as warn_of_clouds
from hub.cli.exits import Exit
from hub.cli.render import Output, warn
from hub.cli.reserved import moves, warn_of
from hub.cli.reserved import unknown as unknown_addresses
from hub.errors import UsageError, did_you_mean
from hub.model import TargetKey
from hub.report.allocations import Write, allocations_of, writes_of
from hub.report.clouds import cloud_writes, clouds_of
from hub.report.facts import known_targets, unknown_sources
from hub.report.held import approving_flags
from hub.report.values import ReservedAddress


async def plan_from_clusters(options: Options, names: Iterable[str], output: Output) -> int:
    """Print the plan of all targets or the named ones.

    Raises:
        HubError: the hub cluster cannot be read, or a name is not known.
    """
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        keys = chosen_targets(hub, names)
        results = [hub.reconciler.decide(key) for key in keys]
        moving: list[ReservedAddress] | None = None
        writes: list[Write] = []
        unknown = bool(unknown_sources(hub, results, keys))
        if not names and hub.allocating is not None:
            found = allocations_of(hub)
            warn_of(found)
            moving, writes = moves(found), writes_of(hub)
            unknown |= bool(found.trouble) or unknown_addresses(found.allocations)
            for allocation in found.allocations:
                if unknown_addresses([allocation]):
                    warn(f"allocation {allocation.name}: {allocation.message}")
        if not names:
            clouds = clouds_of(hub)
            warn_of_clouds(clouds.clusters)
            writes += cloud_writes(clouds)
            unknown |= any(map(unknown_cloud, clouds.clusters))
        changes = print_plan(results, output, approving_flags(hub), hub.reconciler.withheld(), moving, writes)
    if unknown:
        return Exit.UNKNOWN
    return Exit.CHANGES if changes else Exit.OK


def warn_of_problems(hub: Hub) -> None:
    """Warn of registry entries that are broken and therefore frozen."""
    for problem in hub.problems:
        warn(str(problem))


def chosen_targets(hub: Hub, names: Iterable[str] = ()) -> list[TargetKey]:
    """The named targets; all of them if none is named.

    Raises:
        UsageError: a name is not known.
    """
    known = known_targets(hub)
    wanted = [TargetKey(*name.split("/", 1)) for name in names]
    for key in wanted:
        if key not in known:
            hint = suggestion(str(key), map(str, known))
            raise UsageError(f"Service {key} is not in the registry and has no slices{hint}")
    return sorted(wanted or known)


def suggestion(word: str, known: Iterable[str]) -> str:
    """The closest known name in brackets, to append to a message; "" if none is similar."""
    hint = did_you_mean(word, known)
    return f" ({hint})" if hint else ""
