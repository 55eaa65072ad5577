"""Reads one ConfigMap of the hub cluster into a given type."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from hub.errors import BadAnswer
from hub.kube.client import Client
from hub.kube.wire import fault

T = TypeVar("T")

TIMEOUT: Final = 10.0
"""Seconds for a request on a ConfigMap."""


def collection(namespace: str) -> str:
    """API path of the ConfigMaps of a namespace."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


async def fetch(client: Client, path: str, kind: type[T]) -> T:
    """The ConfigMap at ``path``.

    Raises:
        NotFound: there is no such ConfigMap.
        BadAnswer: the answer does not decode.
        HubError: it cannot be read.
    """
    body = await client.request("GET", path, timeout=TIMEOUT)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise BadAnswer(200, "", f"a ConfigMap that does not decode ({fault(error)})", what=path) from error
