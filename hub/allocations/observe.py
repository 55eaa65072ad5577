"""What is known of each address: its answer, its holder, and whether anything may be done about it."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from msgspec.structs import replace

from hub.allocations.scene import MOST_ALLOCATIONS, Scene, Situation
from hub.allocations.spec import Allocation, Entry, moment
from hub.allocations.view import Memory
from hub.cloud.addresses import Free, Held, Unknown

REFUSED: Final = (
    "TooManyAllocations",
    (
        f"an account serves its {MOST_ALLOCATIONS} oldest allocations, and this one is younger: "
        "merge some of them, or add an account"
    ),
)
"""Reason and message of an allocation beyond the limit."""


def situations(scene: Scene, allocation: Allocation) -> list[Situation]:
    """Those that the spec lists, then those that only the stored status has."""
    entries = allocation.entries
    found: list[Situation] = []
    for address in allocation.addresses:
        stored = entries.get(address, Entry(address))
        memory = scene.view.memory.addresses.get(address, Memory())
        found.append(Situation(allocation, address, stored, memory))
    bad = {entry.text for entry in allocation.bad}
    for address, stored in entries.items():
        if address not in allocation.addresses and address not in bad:
            situation = Situation(allocation, address, stored, Memory())
            situation.claimed = False
            found.append(situation)
    for situation in found:
        situation.claimed = situation.claimed and not allocation.deleting
        situation.live = situation.claimed and scene.view.holders.get(situation.address) == allocation.uid
        if situation.claimed:
            scene.claims.add(situation.address)
    return found


def releases(scene: Scene, situation: Situation) -> bool:
    """Whether the address is to be detached, as it has left its allocation and no other one claims it."""
    allocation, address = situation.allocation, situation.address
    if situation.claimed or not allocation.release or address in scene.claims:
        return False
    return scene.view.holders.get(address, "") in ("", allocation.uid)


def observe(scene: Scene, situation: Situation) -> None:
    """Note the answer about the address, and what it says about the holder."""
    situation.answer = answer = scene.fresh(situation.address)
    allocation, stored, memory = situation.allocation, situation.stored, situation.memory
    key = scene.key(allocation, stored.node)
    if scene.site(key.cluster if key is not None else allocation.cluster).problem:  # what held begins again then
        situation.memory = memory = replace(memory, cause="", cause_since=0.0)
    if situation.live and memory.claim != allocation.uid:  # a cause of another claim is no evidence for this one
        situation.memory = memory = replace(memory, claim=allocation.uid, cause="", cause_since=0.0)
    if answer is None or isinstance(answer.state, Unknown):
        situation.answer = None
        if key is not None and scene.machine(key) is not None:
            situation.holder = key
            scene.occupied.setdefault(key, set()).add(situation.address)
        return
    state = answer.state
    if isinstance(state, Held):
        situation.holder = scene.by_instance.get(state.instance)
        if situation.holder is not None and situation.live:
            scene.first_at.setdefault(situation.holder, situation)
        if memory.instance != state.instance:
            known = stored.instance == state.instance and not memory.instance
            placed = moment(stored.since) if known else 0.0
            memory = replace(
                memory, instance=state.instance, placed=placed or scene.now, free=0.0, cause="", cause_since=0.0
            )
    elif isinstance(state, Free):
        free = memory.free or answer.at
        memory = replace(memory, instance="", free=free, cause="", cause_since=0.0)
    else:
        memory = replace(memory, free=0.0, cause="", cause_since=0.0)
    situation.memory = memory


def hold(scene: Scene, situation: Situation) -> bool:
    """Set the state of an address about which nothing may be done; False if something may."""
    address, allocation, account = situation.address, situation.allocation, scene.account
    if not situation.claimed:
        return False
    if not allowed(address, account.allowed):
        return stay(
            situation,
            "Invalid",
            "NotAllowed",
            f"it is not in the addresses of account {account.name}: {', '.join(map(str, account.allowed[:5]))}",
        )
    if other := scene.view.conflicts.get((allocation.uid, address)):
        situation.node = situation.instance = ""
        scene.find(allocation.name, "AddressConflict", f"allocation {other} has the older claim to {address}", address)
        return stay(situation, "Conflict", "Claimed", f"allocation {other} has the older claim")
    if not situation.live:
        situation.node = situation.instance = ""
        return stay(situation, "Conflict", "Waiting", "an older claim has just ended")
    if allocation.uid in scene.refused:
        return stay(situation, "Unknown", *REFUSED)
    if account.problem:
        return stay(situation, "Unknown", "ProviderUnavailable", account.problem)
    if situation.answer is None:
        last = scene.view.answers.get(address)
        why = last.state.reason if last is not None and isinstance(last.state, Unknown) else ""
        return stay(situation, "Unknown", "NoAnswer", why or "the cloud has given no complete answer")
    return False


@lru_cache(4096)
def allowed(address: str, networks: tuple[IPv4Network, ...]) -> bool:
    """Whether an address is in one of the networks."""
    parsed = IPv4Address(address)
    return any(parsed in network for network in networks)


def stay(situation: Situation, state: str, reason: str, message: str) -> bool:
    """Set the state of an address about which nothing may be done; returns True."""
    situation.set(state, reason, message)
    return True
