"""The five requests of the Compute Engine API that the provider needs, and what is common to them.

Each request is made once. A 401 leads to one new token and one repetition.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

from hub.plugin import TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AccountContext, Done, Order, Pending, QuotaExceeded, Step
from hub_provider_gcp import shapes
from hub_provider_gcp.config import ENDPOINT, GcpConfig, host_of
from hub_provider_gcp.failures import Refused, decoded, error_for, problem_in, retry_after
from hub_provider_gcp.http import Answer, fetch
from hub_provider_gcp.login import Login
from hub_provider_gcp.shapes import Instance, Reserved

PAGE: Final = 500
"""Addresses in an answer: the most that the API gives."""

MAX_PAGES: Final = 200
"""More pages are an error, so that a list that repeats itself ends."""


class Api:
    """Sends requests for one account.

    Args:
        account: the hub's services.
        config: the account's configuration.

    Raises:
        TerminalProviderError: ``--allow-api-host`` does not name the host of ``endpoint``, or the hub's flags do not
            allow the reference to the credential.
    """

    def __init__(self, account: AccountContext, config: GcpConfig) -> None:
        self.what = f"account {account.name}"
        self._hub = account.hub
        self._hub.check_api_host(host_of(config.endpoint), host_of(ENDPOINT))
        self._url = f"{config.endpoint}/compute/v1/projects/{config.project}"
        self._login = Login(account, config.credentials)
        self._not_before = 0.0

    async def addresses(self, region: str = "") -> dict[str, Reserved]:
        """Lists the external addresses of a region, or of the whole project.

        Raises:
            ProviderError: there is no complete list.
        """
        path = f"regions/{region}/addresses" if region else "aggregated/addresses"
        params = {"filter": "addressType=EXTERNAL", "maxResults": str(PAGE)}
        found: dict[str, Reserved] = {}
        for _ in range(MAX_PAGES):
            body = await self._read(path, params)
            what = f"{self.what}: GET {path}"
            for entry in _entries(body, what, whole=not region):
                if (row := shapes.reserved(entry, what)) is not None:
                    found[row.address] = row
            if "nextPageToken" not in body:
                return found
            params["pageToken"] = shapes.text(body, "nextPageToken", what)
        raise TransientProviderError(f"{self.what}: GET {path}: more than {MAX_PAGES} pages")

    async def instance(self, id_: str) -> Instance | None:
        """Reads an instance; None if it does not exist.

        Raises:
            UnsupportedInstance: the text is not the id of an instance.
            Refused: the API refuses the request, for example because of the zone.
        """
        shapes.zone_of(id_)
        name = id_.rpartition("/")[2]
        try:
            body = await self._read(id_)
        except Refused as error:
            if error.is_missing(name):
                return None
            raise
        return shapes.instance(body, name, f"{self.what}: GET {id_}")

    async def delete_access_config(self, order: Order, name: str) -> Pending:
        """Removes the external address of nic0."""
        return await self._write(order, "deleteAccessConfig", {"accessConfig": name}, None)

    async def add_access_config(self, order: Order, config: Mapping[str, str]) -> Pending:
        """Gives nic0 an external address: the one of ``natIP``, or an ephemeral one."""
        return await self._write(order, "addAccessConfig", {}, {"type": "ONE_TO_ONE_NAT", **config})

    async def operation(self, path: str) -> Step:
        """Looks at an operation; Done if it has ended well, or does not exist.

        Raises:
            ProviderError: it has failed.
        """
        try:
            body = await self._read(path)
        except Refused as error:
            if error.is_missing(path.rpartition("/")[2]):
                return Done()
            raise
        return Done() if self._ended(body, f"{self.what}: {path}", path) else Pending(path)

    async def _read(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return await self._call("GET", path, params=params or {})

    async def _write(
        self, order: Order, verb: str, params: Mapping[str, str], json: Mapping[str, str] | None
    ) -> Pending:
        """Changes nic0 of the order's instance; returns the operation even if it has ended already.

        Google Cloud takes two requests with the same requestId for one. An attach may need two different writes, so
        the id depends on the kind of write, too.
        """
        path = f"{order.instance}/{verb}"
        request_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{order.token}/{verb}"))
        params = {**params, "networkInterface": "nic0", **({"requestId": request_id} if order.token else {})}
        body = await self._call("POST", path, params=params, json=json)
        what = f"{self.what}: POST {path}"
        operation = f"zones/{shapes.zone_of(order.instance)}/operations/{shapes.text(body, 'name', what)}"
        self._ended(body, what, operation)
        return Pending(operation)

    def _ended(self, body: Mapping[str, Any], what: str, operation: str) -> bool:
        """Whether an operation has ended; raises the ProviderError for its failure."""
        if body.get("kind") != "compute#operation" or body.get("name") != operation.rpartition("/")[2]:
            raise TransientProviderError(f"{what}: the answer is not about the operation")
        status = shapes.text(body, "status", what)
        if status not in ("PENDING", "RUNNING", "DONE") or not shapes.is_operation(operation):
            raise TransientProviderError(f"{what}: the operation has an unknown status or name")
        if "error" in body:
            raise error_for(0, problem_in(body["error"]), what, self._hub.redact, None, write=True)
        return status == "DONE"

    async def _call(self, method: Literal["GET", "POST"], path: str, **request: Any) -> dict[str, Any]:
        """Returns the object of a successful answer.

        Raises:
            QuotaExceeded: the API asked to wait, now or earlier.
            Refused: a GET was refused, for example with 404.
            ProviderError: any other error.
        """
        what = f"{self.what}: {method} {path}"
        token = await self._login.token()
        answer = await self._send(method, path, what, token, request)
        if answer.status == 401:
            token = await self._login.token(refused=token)
            answer = await self._send(method, path, what, token, request)
        if answer.status == 401:
            raise TerminalProviderError(f"{what}: 401, the API refuses the token; replace {self._login.place}")
        body = decoded(answer.data)
        if answer.status == 200 and body is not None:
            return body
        wait = retry_after(answer.headers, self._hub.clock.wall())
        problem = problem_in((body or {}).get("error"))
        error = error_for(answer.status, problem, what, self._hub.redact, wait, write=method == "POST")
        if isinstance(error, QuotaExceeded) and wait is not None:
            self._not_before = self._hub.clock.now() + wait
        raise error

    async def _send(self, method: str, path: str, what: str, token: str, request: Mapping[str, Any]) -> Answer:
        wait = self._not_before - self._hub.clock.now()
        if wait > 0:
            raise QuotaExceeded(f"{what}: not sent, the API asked to wait {wait:.0f} s", retry_after=wait)
        headers = {"Authorization": f"Bearer {token}"}
        return await fetch(self._hub.http, method, f"{self._url}/{path}", what, headers=headers, **request)


def _entries(body: Mapping[str, Any], what: str, *, whole: bool) -> list[object]:
    """Returns the entries of one page.

    The API leaves out ``items`` if there are none, so ``kind`` proves that the answer is a list.
    """
    kind = "compute#addressAggregatedList" if whole else "compute#addressList"
    if body.get("kind") != kind:
        raise TransientProviderError(f"{what}: the answer is not a list of addresses")
    _check_reached(body, what)
    if not whole:
        return shapes.sequence(body.get("items", []), "items", what)
    entries: list[object] = []
    for part in shapes.mapping(body.get("items", {}), what).values():
        scope = shapes.mapping(part, what)
        _check_reached(scope, what)
        entries += shapes.sequence(scope.get("addresses", []), "addresses", what)
    return entries


def _check_reached(part: Mapping[str, Any], what: str) -> None:
    """Raises TransientProviderError if a region did not answer."""
    warning = shapes.mapping(part.get("warning", {}), what)
    if part.get("unreachables") or warning.get("code") in ("UNREACHABLE", "PARTIAL_SUCCESS"):
        raise TransientProviderError(f"{what}: the list is not complete, a region does not answer")
