"""Requests about reserved addresses: blocks, one NIC, its change, and the change's progress."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

from hub.plugin import HubContext, TransientProviderError
from hub_provider_ionos import inventory, reserved
from hub_provider_ionos.api import Api, Call
from hub_provider_ionos.config import as_uuid
from hub_provider_ionos.inventory import Malformed, Nic
from hub_provider_ionos.permit import Permit
from hub_provider_ionos.reserved import Reserved

RECENT: Final = 3600.0
"""Seconds within which a change that is still going on was requested."""

ACTIVE: Final = frozenset(("QUEUED", "RUNNING"))


class Card(NamedTuple):
    """The ids that make up a NIC's path."""

    datacenter: str
    server: str
    nic: str

    @property
    def path(self) -> str:
        """The path of its URL, below the API's."""
        return f"/datacenters/{self.datacenter}/servers/{self.server}/nics/{self.nic}"


class Progress(NamedTuple):
    """The state of a change: QUEUED, RUNNING, DONE or FAILED, and the API's message."""

    status: str
    message: str


class Calls:
    """Sends the requests.

    Args:
        hub: The hub's services.
        api: The account's client.
    """

    def __init__(self, hub: HubContext, api: Api) -> None:
        self._hub = hub
        self._api = api

    @property
    def what(self) -> str:
        """The API, for error messages."""
        return self._api.account.url

    async def reserved(self) -> Mapping[str, Reserved]:
        """Returns all reserved addresses of the account."""
        call = Call("the reserved blocks", "IPBlocksApi", "ipblocks_get", (), {"depth": 1})
        blocks = await self._api.whole_list(call, inventory.uuid_of, reserved.block)
        return {address: said for block in blocks for address, said in block.items()}

    async def location(self, datacenter: str) -> str:
        """Returns the location of a data center, such as ``de/fra``."""
        about = f"the location of data center {datacenter}"
        call = Call(about, "DataCentersApi", "datacenters_find_by_id", (datacenter,), {"depth": 1})
        return await self._api.ask(call, _location)

    async def nic(self, card: Card) -> Nic:
        """Returns a NIC.

        Raises:
            Missing: It does not exist.
        """
        about = f"NIC {card.nic} of server {card.server}"
        call = Call(about, "NetworkInterfacesApi", "datacenters_servers_nics_find_by_id", card, {"depth": 1})
        return await self._api.ask(call, lambda data: inventory.network_card(_mapping(data, about), about))

    async def set_ips(self, card: Card, ips: list[str], permit: Permit) -> str:
        """Replaces the IPv4 addresses of a NIC and returns the id of the request, for :meth:`progress`.

        Args:
            card: The NIC.
            ips: All its addresses.
            permit: It is asked immediately before the change is sent. The call returns only after its thread has
                ended.

        Raises:
            AddressConflict: The API refuses the addresses.
            TransientProviderError: Another change is going on, nothing was sent, or the outcome is not known.
        """
        if not ips:
            raise ValueError("an empty list makes the API choose an address")
        about = f"a change of NIC {card.nic} of server {card.server}"
        arguments = (*card, {"ips": ips})
        call = Call(
            about,
            "NetworkInterfacesApi",
            "datacenters_servers_nics_patch",
            arguments,
            {},
            write=True,
            permit=permit,
        )
        return await self._api.ask(call, request_id)

    async def progress(self, request: str) -> Progress:
        """Returns the state of a change.

        Raises:
            Missing: The API does not know it.
        """
        call = Call(f"the state of request {request}", "RequestsApi", "requests_status_get", (request,), {})
        found = await self._api.ask(call, _progress)
        return Progress(found.status, self._api.redact(found.message))

    async def change_in_progress(self, card: Card) -> str:
        """Returns the id of the request that changes a NIC now, for one whose own answer was lost.

        Raises:
            TransientProviderError: No request of the last hour is still changing it.
        """
        about = f"requests for NIC {card.nic} of server {card.server}"
        since = datetime.fromtimestamp(self._hub.clock.wall() - RECENT, UTC).strftime("%Y-%m-%d %H:%M:%S")
        filters = {"filter_method": "PATCH", "filter_url": card.path, "filter_created_after": since}
        call = Call(about, "RequestsApi", "requests_get", (), {"depth": 2, "offset": 0, "limit": 100, **filters})
        found = await self._api.ask(call, lambda data: _active(data, card.path))
        if not found:
            raise TransientProviderError(f"{self.what}: NIC {card.nic} of server {card.server} is being changed")
        return found


def _location(data: object) -> str:
    location = _mapping(_mapping(data, "the answer").get("properties"), "properties").get("location")
    if not isinstance(location, str):
        raise Malformed("location is missing")
    return location


def request_id(location: object) -> str:
    """Returns the id in the header Location. The rest is not followed: it could lead to another host."""
    found = re.search(r"/requests/([0-9a-fA-F-]{36})(?:/|$)", location) if isinstance(location, str) else None
    identity = as_uuid(found[1]) if found else ""
    if not identity:
        raise Malformed("the change was accepted, but the answer does not name its request")
    return identity


def _progress(data: object) -> Progress:
    metadata = _mapping(_mapping(data, "the answer").get("metadata"), "metadata")
    status, message = metadata.get("status"), metadata.get("message")
    if status not in (*ACTIVE, "DONE", "FAILED"):
        raise Malformed("status is missing or unknown")
    return Progress(str(status), message[:200] if isinstance(message, str) else "")


def _active(data: object, path: str) -> str:
    """Returns the id of a request that has not ended and changes ``path``; "" if the page has none."""
    for identity, item in inventory.page(data, 100, inventory.uuid_of).items:
        entry = cast("Any", item)
        try:
            url = str(entry["properties"]["url"]).partition("?")[0].rstrip("/").lower()
            status = entry["metadata"]["requestStatus"]["metadata"]["status"]
        except (KeyError, TypeError) as error:
            raise Malformed(f"request {identity}: its URL or its status is missing") from error
        if url.endswith(path) and status in ACTIVE:
            return identity
    return ""


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise Malformed(f"{what} is not an object")
    return cast("Mapping[str, object]", value)
