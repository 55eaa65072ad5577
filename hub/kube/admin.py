"""Objects that an operator creates and deletes by hand: the official ``kubernetes`` client behind our own credentials.

The only importer of ``kubernetes``, and only while :func:`administer` is open: it costs a second and 80 MB. The
kubeconfig is read by :mod:`hub.kube.kubeconfig`, tokens, certificates and exec plugins come from
:mod:`hub.kube.credentials`, since the package's own go on anonymously where a plugin fails. No environment proxy, no
redirect, a deadline for each call; what goes wrong is a :class:`~hub.errors.HubError`. The hub itself never comes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from hub.errors import BadAnswer, HubError, NotFound
from hub.kube.client import api_error, connection_error
from hub.kube.credentials import Credentials

TIMEOUT: Final = 15.0
"""Seconds for one call."""
FEW: Final = 10
"""Objects that are named where it matters whether there are any."""

Manifest = dict[str, Any]
"""A Kubernetes object as in JSON."""

_CALLS: Final = {
    "Namespace": ("CoreV1Api", "namespace"),
    "ServiceAccount": ("CoreV1Api", "namespaced_service_account"),
    "Secret": ("CoreV1Api", "namespaced_secret"),
    "Pod": ("CoreV1Api", "namespaced_pod"),
    "ClusterRole": ("RbacAuthorizationV1Api", "cluster_role"),
    "ClusterRoleBinding": ("RbacAuthorizationV1Api", "cluster_role_binding"),
    "Role": ("RbacAuthorizationV1Api", "namespaced_role"),
    "RoleBinding": ("RbacAuthorizationV1Api", "namespaced_role_binding"),
}
"""Kind -> class of its calls, and how their names end."""


class Admin:
    """Reads, creates, replaces and deletes objects of one API server; made by :func:`administer`.

    Every method raises :class:`~hub.errors.ApiError` where the server says no, and
    :class:`~hub.errors.ClusterUnreachable` and the like where it says nothing.
    """

    def __init__(self, api_client: Any, server: str) -> None:
        self._client = api_client
        self.server = server

    async def find(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """An object, or None if it does not exist."""
        try:
            return self._plain(await self._call("read", kind, name, namespace, name))
        except NotFound:
            return None

    async def labelled(self, kind: str, selector: str) -> list[Manifest]:
        """All objects of a namespaced kind with these labels, in all namespaces."""
        group, name = _CALLS[kind]
        call = getattr(self._group(group), f"list_{name.removeprefix('namespaced_')}_for_all_namespaces")
        found = await self._answer(f"list {kind}s", lambda: call(label_selector=selector, _request_timeout=TIMEOUT))
        return [{"kind": kind, **self._plain(item)} for item in found.items]

    async def some(self, kind: str, namespace: str) -> list[str]:
        """The names of a few objects of a kind in a namespace."""
        group, name = _CALLS[kind]
        call = getattr(self._group(group), f"list_{name}")
        what = f"list {kind}s of {namespace}"
        found = await self._answer(what, lambda: call(namespace, limit=FEW, _request_timeout=TIMEOUT))
        return [item.metadata.name for item in found.items]

    async def create(self, manifest: Manifest) -> None:
        """Create an object."""
        name, namespace = _names(manifest)
        await self._call("create", manifest["kind"], name, namespace, body=manifest)

    async def replace(self, manifest: Manifest) -> None:
        """Replace an object; with its ``resourceVersion``, only that state of it."""
        name, namespace = _names(manifest)
        await self._call("replace", manifest["kind"], name, namespace, name, body=manifest)

    async def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """Delete an object; False where there was none."""
        try:
            await self._call("delete", kind, name, namespace, name)
        except NotFound:
            return False
        return True

    async def _call(
        self, verb: str, kind: str, name: str, namespace: str, *arguments: str, body: Manifest | None = None
    ) -> Any:
        group, ending = _CALLS[kind]
        call = getattr(self._group(group), f"{verb}_{ending}")
        named: dict[str, Any] = {"namespace": namespace} if ending.startswith("namespaced_") else {}
        if body is not None:
            named["body"] = self._model(kind).from_dict(body)
        place = f"{namespace}/{name}" if namespace else name
        return await self._answer(f"{verb} {kind} {place}", lambda: call(*arguments, **named, _request_timeout=TIMEOUT))

    async def _answer(self, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Turn every error of the package and of aiohttp into a HubError."""
        from aiohttp import ClientError
        from kubernetes.aio.client.exceptions import ApiException
        from pydantic import ValidationError

        try:
            async with asyncio.timeout(TIMEOUT):
                return await call()
        except ApiException as error:
            body: Any = error.body  # annotated as text, but bytes if the answer is not UTF-8
            body = body if isinstance(body, bytes) else str(body or "").encode()
            raise api_error(error.status or 0, body, what, phrase=str(error.reason or "")[:64]) from None
        except ValidationError:
            raise BadAnswer(200, "", "an object that does not decode", what=what) from None
        except (ClientError, OSError) as error:  # TimeoutError is an OSError
            raise connection_error(_cause(error), self.server) from error

    def _group(self, name: str) -> Any:
        from kubernetes.aio import client

        return getattr(client, name)(self._client)

    @staticmethod
    def _model(kind: str) -> Any:
        from kubernetes.aio import client

        return getattr(client, f"V1{kind}")

    def _plain(self, model: Any) -> Manifest:
        plain: Manifest = self._client.sanitize_for_serialization(model)
        return plain


@asynccontextmanager
async def administer(credentials: Credentials) -> AsyncIterator[Admin]:
    """Calls with these credentials; closed at the end.

    Raises:
        CredentialError: there is no usable credential.
    """
    headers = await credentials.headers()
    import aiohttp
    from kubernetes.aio import client

    guard = aiohttp.TraceConfig()
    guard.on_request_redirect.append(_refuse_redirect)
    configuration = client.Configuration(host=credentials.server)
    configuration.proxy = None
    configuration.tls_server_name = credentials.server_hostname
    configuration.client_session_kwargs = {"trust_env": False, "trace_configs": [guard]}
    async with client.ApiClient(configuration) as api_client:
        api_client.rest_client.ssl_context = credentials.ssl_context()
        for name, value in headers.items():
            api_client.set_default_header(name, value)
        yield Admin(api_client, credentials.server)


async def _refuse_redirect(*_: object) -> None:
    raise HubError("the API server redirects, which none does: look at what stands in front of it")


def _names(manifest: Manifest) -> tuple[str, str]:
    meta = manifest["metadata"]
    return meta["name"], meta.get("namespace", "")


def _cause(error: Exception) -> Exception:
    """The system error below an error of aiohttp."""
    for name in ("certificate_error", "os_error"):
        cause = getattr(error, name, None)
        if isinstance(cause, Exception):
            return cause
    return error
