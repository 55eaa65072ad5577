"""Checked values from answers of the Compute Engine API, and the states that they mean.

A part that is missing or of the wrong type makes the whole answer an error, because an incomplete answer must never
look like a free address. The API leaves out empty lists, which are the only parts that may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from hub.plugin import TransientProviderError, Unknown
from hub.plugin.addresses import AddressState, Changing, Elsewhere, Free, Held, NotReserved, UnsupportedInstance

ZONE: Final = r"[a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30}){1,4}"
NAME: Final = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"

_INSTANCE: Final = re.compile(rf"zones/({ZONE})/instances/({NAME})")
_PROVIDER_ID: Final = re.compile(rf"gce://([a-z0-9.:-]{{6,100}})/({ZONE})/({NAME})")
_USER: Final = re.compile(
    r"https://[a-z0-9.-]+/compute/[a-z0-9]+/projects/([a-z0-9.:-]{1,100})/([a-zA-Z0-9/_-]{1,300})"
)
_OPERATION: Final = re.compile(rf"zones/{ZONE}/operations/[a-z0-9-]{{1,120}}")
_BEFORE: Final = re.compile(r"([A-Z_]{1,40})/([ -~]{1,63})")

UP: Final = frozenset(("PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING", "PENDING_STOP"))
DOWN: Final = frozenset(("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED", "DEPROVISIONING"))
"""States of an instance that does not run. A state in neither set is unknown."""

DEFAULT_NAME: Final = "External NAT"
DEFAULT_TIER: Final = "PREMIUM"


class Reserved(NamedTuple):
    """A reserved external address.

    Attributes:
        region: "" for a global address.
        users: URLs of the resources that have it.
    """

    address: str
    region: str
    tier: str
    status: str
    users: tuple[str, ...]


class Access(NamedTuple):
    """The access config of nic0, which gives it an external address.

    Attributes:
        address: "" if there is none now, as for an ephemeral address of a stopped instance.
        extras: properties that are lost with the config, in words; "" if there are none.
    """

    name: str
    tier: str
    address: str
    extras: str

    @property
    def before(self) -> str:
        """What ``restore`` needs to give back an ephemeral address; "" if the config cannot be stated so."""
        text = f"{self.tier}/{self.name}"
        return text if _BEFORE.fullmatch(text) else ""


class Instance(NamedTuple):
    """A virtual machine.

    Attributes:
        running: None if the API gives a status that this version does not know.
        access: None if nic0 has no external address.
        others: external addresses of the other interfaces.
    """

    status: str
    running: bool | None
    access: Access | None
    others: frozenset[str]


def instance_id(provider_id: str, project: str) -> str | None:
    """Returns the canonical id, such as ``zones/us-west1-a/instances/n1``; None if it is not of the project."""
    found = _PROVIDER_ID.fullmatch(provider_id)
    return f"zones/{found[2]}/instances/{found[3]}" if found and found[1] == project else None


def zone_of(instance: str) -> str:
    """Returns the zone in a canonical id.

    Raises:
        UnsupportedInstance: the id is not canonical, so it must not become part of a URL.
    """
    found = _INSTANCE.fullmatch(instance)
    if found is None:
        raise UnsupportedInstance(f"{instance[:100]!r} is not the id of an instance")
    return found[1]


def region_of(zone: str) -> str:
    """Returns the region of a zone: us-west1 for us-west1-a."""
    return zone.rpartition("-")[0]


def is_operation(text: str) -> bool:
    """Whether a text is a path such as ``zones/us-west1-a/operations/operation-1``."""
    return _OPERATION.fullmatch(text) is not None


def split_before(before: str) -> tuple[str, str] | None:
    """Returns network tier and name in :attr:`Access.before`; None if the text is not one."""
    found = _BEFORE.fullmatch(before)
    return (found[1], found[2]) if found else None


def reserved(entry: object, what: str) -> Reserved | None:
    """Reads an entry of a list of addresses; None for one that has no address yet.

    Raises:
        TransientProviderError: the entry is not complete.
    """
    row = mapping(entry, what)
    status = text(row, "status", what)
    if status == "RESERVING" and "address" not in row:
        return None
    users: object = row.get("users", [])
    if not isinstance(users, list) or not all(isinstance(user, str) for user in cast("list[object]", users)):
        raise TransientProviderError(f"{what}: the answer has no valid 'users'")
    region = text(row, "region", what).rpartition("/")[2] if "region" in row else ""
    tier = text(row, "networkTier", what) if "networkTier" in row else DEFAULT_TIER
    return Reserved(text(row, "address", what), region, tier, status, tuple(cast("list[str]", users)))


def state_of(found: Reserved | None, project: str, where: str) -> AddressState:
    """Returns what an entry means.

    Args:
        found: the entry; None if complete lists have none.
        project: the account's project.
        where: the lists, in words.
    """
    if found is None:
        return NotReserved(f"{where} has no such reserved address")
    if not found.region:
        return NotReserved("it is a global address, which instances cannot have")
    if not found.users:
        if found.status == "RESERVED":
            return Free(found.region)
        return Changing() if found.status == "RESERVING" else Unknown(f"status {found.status} without a user")
    user = _USER.fullmatch(found.users[0])
    if len(found.users) == 1 and user and user[1] == project and _INSTANCE.fullmatch(user[2]):
        return Held(user[2], region=found.region)
    return Elsewhere(", ".join(sorted(map(_shown, found.users)))[:300])


def _shown(user: str) -> str:
    """Returns kind and name of a user, such as ``forwardingRules/web``."""
    found = _USER.fullmatch(user)
    return "/".join(found[2].split("/")[-2:]) if found else "something with an invalid URL"


def instance(body: Mapping[str, Any], name: str, what: str) -> Instance:
    """Reads an instance.

    Raises:
        TransientProviderError: the answer is not complete, or about another instance.
    """
    if body.get("kind") != "compute#instance" or body.get("name") != name:
        raise TransientProviderError(f"{what}: the answer is not about this instance")
    status = text(body, "status", what)
    nics: dict[str, list[Access]] = {}
    for row in sequence(body.get("networkInterfaces"), "networkInterfaces", what):
        nic = mapping(row, what)
        configs = sequence(nic.get("accessConfigs", []), "accessConfigs", what)
        nics[text(nic, "name", what)] = [_access(mapping(config, what), what) for config in configs]
    first = nics.pop("nic0", None)
    if first is None or len(first) > 1:
        raise TransientProviderError(f"{what}: the answer has no interface nic0 with at most one access config")
    running = True if status in UP else False if status in DOWN else None
    others = frozenset(access.address for accesses in nics.values() for access in accesses)
    return Instance(status, running, first[0] if first else None, others)


def _access(config: Mapping[str, Any], what: str) -> Access:
    lost = {"setPublicPtr": "a DNS PTR record", "securityPolicy": "a security policy"}
    return Access(
        name=text(config, "name", what),
        tier=text(config, "networkTier", what) if "networkTier" in config else DEFAULT_TIER,
        address=text(config, "natIP", what) if "natIP" in config else "",
        extras=" and ".join(words for key, words in lost.items() if config.get(key)),
    )


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Returns a JSON object; raises TransientProviderError for anything else."""
    if not isinstance(value, Mapping):
        raise TransientProviderError(f"{what}: the answer has something else in the place of an object")
    return cast("Mapping[str, Any]", value)


def sequence(value: object, key: str, what: str) -> list[object]:
    """Returns a JSON list; raises TransientProviderError for anything else."""
    if not isinstance(value, list):
        raise TransientProviderError(f"{what}: the answer has no valid {key!r}")
    return cast("list[object]", value)


def text(row: Mapping[str, Any], key: str, what: str) -> str:
    """Returns a text that an object must have; raises TransientProviderError if it has none."""
    value: object = row.get(key)
    if not isinstance(value, str) or not value:
        raise TransientProviderError(f"{what}: the answer has no valid {key!r}")
    return value
