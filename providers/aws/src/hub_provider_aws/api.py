"""Sends requests to the EC2 API of one account, and turns all that goes wrong into errors of the plugin API."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode

import aiohttp

from hub.plugin import TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AccountContext, QuotaExceeded
from hub_provider_aws import answers
from hub_provider_aws.answers import Address, Instance
from hub_provider_aws.config import AwsConfig
from hub_provider_aws.failures import Answer, error_for
from hub_provider_aws.sdk import DefaultKeys, Keys, sign

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

T = TypeVar("T")

VERSION: Final = "2016-11-15"
MAX_BODY: Final = 16 * 1024 * 1024
TIMEOUT: Final = aiohttp.ClientTimeout(total=15.0, sock_connect=5.0)
MAX_WAIT: Final = 3600.0
"""The most seconds that all requests wait, whatever Retry-After says."""
MAX_PAGES: Final = 100
"""The most pages of one list. An API that never ends a list is an error instead of an endless loop."""


class Ec2:
    """Sends the requests of one account, each only once except after a refused credential.

    Args:
        account: The hub's services.
        config: The region, the credential and the endpoint.

    Raises:
        TerminalProviderError: The endpoint's host, or a reference to a credential, is not allowed.
    """

    def __init__(self, account: AccountContext, config: AwsConfig) -> None:
        hub = self._hub = account.hub
        hub.check_api_host(config.host, config.default_host)
        self._config = config
        self._place = f"account {account.name}: EC2 at {config.host}"
        self._blocked_until = -math.inf
        key, secret = config.credentials.access_key_id, config.credentials.secret_access_key
        self._pair = (hub.secret(key.ref()), hub.secret(secret.ref())) if key and secret else None
        self._default = DefaultKeys(config.region)

    async def addresses(self, wanted: Sequence[str], about: str) -> dict[str, Address]:
        """Returns those of at most 200 public addresses that the account has reserved."""
        return await self._read("DescribeAddresses", about, _filter("public-ip", wanted), answers.addresses)

    async def instances(self, wanted: Sequence[str], about: str) -> dict[str, Instance]:
        """Returns those of at most 200 instances that exist, from all pages of the answer."""
        found: dict[str, Instance] = {}
        parameters = _filter("instance-id", wanted)
        for _ in range(MAX_PAGES):
            page = await self._read("DescribeInstances", about, parameters, answers.instances)
            found |= page.found
            if not page.next:
                return found
            parameters["NextToken"] = page.next
        raise TransientProviderError(f"{self._place}: DescribeInstances for {about}: more than {MAX_PAGES} pages")

    async def associate(self, about: str, parameters: Mapping[str, str]) -> str:
        """Associates an address and returns the association's id."""
        return await self._read("AssociateAddress", about, parameters, answers.association)

    async def _read(self, action: str, about: str, parameters: Mapping[str, str], reader: Callable[[Element], T]) -> T:
        root = await self.call(action, about, parameters)
        try:
            return reader(root)
        except answers.IncompleteAnswer as error:
            raise TransientProviderError(f"{self._place}: {action} for {about}: {error}") from error

    async def call(self, action: str, about: str, parameters: Mapping[str, str]) -> Element:
        """Sends a request, with a renewed credential once more if the first is refused.

        Args:
            action: The action of the API.
            about: What the request is about, for error messages.
            parameters: The action's parameters.

        Returns:
            The root of the answer, without namespaces.

        Raises:
            ProviderError: There is no good answer; see :func:`hub_provider_aws.failures.error_for`.
            CredentialError: A key cannot be read.
        """
        what = f"{self._place}: {action} for {about}"
        if (wait := self._blocked_until - self._hub.clock.now()) > 0:
            raise QuotaExceeded(f"{what}: not sent, the API asked to wait for another {wait:.0f} s", wait)
        body = urlencode({"Action": action, "Version": VERSION, **parameters}).encode()
        answer = await self._send(body, what, reload=False)
        if answer.refused:
            answer = await self._send(body, what, reload=True)
        if answer.status == 200 and answer.root is not None and answer.root.tag == f"{action}Response":
            return answer.root
        said = self._hub.redact(answer.message[:300])
        error = error_for(answer, action, f"{what}: {answer.status} {answer.code}".rstrip(), said)
        if isinstance(error, QuotaExceeded) and error.retry_after is not None:
            self._blocked_until = self._hub.clock.now() + error.retry_after
        raise error

    async def _send(self, body: bytes, what: str, *, reload: bool) -> Answer:
        keys = await self._keys(what, reload=reload)
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        url = f"{self._config.url}/"
        headers = sign(url, body, headers, keys, self._config.region) | {"Accept-Encoding": "identity"}
        try:
            async with self._hub.http.post(
                url, data=body, headers=headers, timeout=TIMEOUT, allow_redirects=False
            ) as response:
                content = bytearray()
                async for piece in response.content.iter_chunked(65_536):
                    content += piece
                    if len(content) > MAX_BODY:
                        raise TransientProviderError(f"{what}: the answer is larger than {MAX_BODY} bytes")
                root = await self._hub.run_sync(answers.parse, bytes(content))
                return Answer(response.status, root, _seconds(response.headers.get("Retry-After")))
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = "no complete answer in time" if isinstance(error, TimeoutError) else type(error).__name__
            raise TransientProviderError(f"{what}: {reason}; check the network between the hub and AWS") from error

    async def _keys(self, what: str, *, reload: bool) -> Keys:
        if self._pair is not None:
            key, secret = [(await part.get(reload=reload)).strip() for part in self._pair]
            if not re.fullmatch(r"\w{3,128}", key, re.ASCII):
                raise TerminalProviderError(f"{what}: accessKeyId refers to something that is no access key's id")
            return Keys(key, secret)
        try:
            return await self._hub.run_sync(self._default.get, reload)
        except TransientProviderError as error:
            raise TransientProviderError(f"{what}: {error}") from error


def _filter(name: str, values: Sequence[str]) -> dict[str, str]:
    numbered = {f"Filter.1.Value.{number}": value for number, value in enumerate(values, 1)}
    return {"Filter.1.Name": name, **numbered}


def _seconds(value: str | None) -> float | None:
    """Returns the seconds of a Retry-After header; None without a number of seconds."""
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return min(float(value), MAX_WAIT)
