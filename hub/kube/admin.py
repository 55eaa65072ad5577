"""Manages objects for operator commands, using the official ``kubernetes`` client with the hub's own transport.

The hub process itself does not use this module. It is the only one that imports ``kubernetes``, and only inside
:func:`administer`, since the import takes a second and 80 MB. Kubeconfigs are read by :mod:`hub.kube.kubeconfig`, and
requests are made by :mod:`hub.kube.client` with its credentials, proxies and limits, since the package's own loader
continues anonymously if a plugin fails. Every call has a timeout, and every error is a :class:`~hub.errors.HubError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from hub.errors import ApiError, BadAnswer, NotFound
from hub.kube.client import JSON, Client
from hub.kube.credentials import Credentials
from hub.kube.resolver import LookupPool

TIMEOUT: Final = 15.0
"""The timeout of one call, in seconds."""
SOME_LIMIT: Final = 10
"""Most names that :meth:`Admin.some_names` returns: its callers only need to know whether any object exists."""

Manifest = dict[str, Any]
"""A Kubernetes object in its JSON form."""

_CALLS: Final = {
    "Namespace": ("CoreV1Api", "namespace"),
    "ServiceAccount": ("CoreV1Api", "namespaced_service_account"),
    "Secret": ("CoreV1Api", "namespaced_secret"),
    "Pod": ("CoreV1Api", "namespaced_pod"),
    "ClusterRole": ("RbacAuthorizationV1Api", "cluster_role"),
    "ClusterRoleBinding": ("RbacAuthorizationV1Api", "cluster_role_binding"),
    "Role": ("RbacAuthorizationV1Api", "namespaced_role"),
    "RoleBinding": ("RbacAuthorizationV1Api", "namespaced_role_binding"),
    "ValidatingAdmissionPolicy": ("AdmissionregistrationV1Api", "validating_admission_policy"),
    "ValidatingAdmissionPolicyBinding": ("AdmissionregistrationV1Api", "validating_admission_policy_binding"),
}
"""Kind -> the class of the package that has its calls, and the end of the names of these calls."""


class Admin:
    """Reads, creates, replaces and deletes objects of one API server; made by :func:`administer`.

    Every method raises :class:`~hub.errors.ApiError` if the server refuses the call, and another
    :class:`~hub.errors.HubError`, such as :class:`~hub.errors.ClusterUnreachable`, if the server does not answer.
    """

    def __init__(self, api_client: Any, server: str) -> None:
        self._client = api_client
        self.server = server

    async def find(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """Read an object; None if it does not exist."""
        try:
            return self._plain(await self._call("read", kind, name, namespace, name))
        except NotFound:
            return None

    async def list_labelled(self, kind: str, selector: str) -> list[Manifest]:
        """List all objects of a namespaced kind with these labels, in all namespaces."""
        group, name = _CALLS[kind]
        call = getattr(self._group(group), f"list_{name.removeprefix('namespaced_')}_for_all_namespaces")
        found = await self._answer(f"list {kind}s", lambda: call(label_selector=selector, _request_timeout=TIMEOUT))
        return [{"kind": kind, **self._plain(item)} for item in found.items]

    async def some_names(self, kind: str, namespace: str) -> list[str]:
        """List the names of up to ``SOME_LIMIT`` objects of a kind in a namespace."""
        group, name = _CALLS[kind]
        call = getattr(self._group(group), f"list_{name}")
        what = f"list {kind}s of {namespace}"
        found = await self._answer(what, lambda: call(namespace, limit=SOME_LIMIT, _request_timeout=TIMEOUT))
        return [item.metadata.name for item in found.items]

    async def create(self, manifest: Manifest) -> None:
        """Create an object."""
        name, namespace = _names(manifest)
        await self._call("create", manifest["kind"], name, namespace, body=manifest)

    async def replace(self, manifest: Manifest) -> None:
        """Replace an object. A ``resourceVersion`` in the manifest must be the current one (else Conflict)."""
        name, namespace = _names(manifest)
        await self._call("replace", manifest["kind"], name, namespace, name, body=manifest)

    async def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """Delete an object; False if it did not exist."""
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
        """Await a call; every error is a HubError that names the call."""
        from pydantic import ValidationError

        try:
            return await call()
        except ApiError as error:
            raise type(error)(error.status, error.reason, error.message, what=what, causes=error.causes) from None
        except (ValidationError, ValueError):
            raise BadAnswer(200, "", "an object that does not decode", what=what) from None

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


class _Answer:
    """A successful answer, with the interface that the package needs."""

    status = 200
    headers: Final = {"content-type": JSON}

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read(self) -> bytes:
        return self.data


class _Transport:
    """Takes the place of the package's ``RESTClientObject``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def request(self, method: str, url: str, *, body: object = None, **_: object) -> _Answer:
        data = msgspec.json.encode(body) if body is not None else None
        path = url.removeprefix(self._client.server)
        return _Answer(await self._client.request(method, path, body=data, timeout=TIMEOUT))

    async def close(self) -> None:
        """The client is closed by its owner."""


@asynccontextmanager
async def administer(credentials: Credentials) -> AsyncIterator[Admin]:
    """Open a client with these credentials; it is closed with the context.

    Raises:
        CredentialError: there is no usable credential.
    """
    await credentials.headers()
    from kubernetes.aio import client

    pool = LookupPool()
    try:
        async with Client(credentials, pool) as transport:
            api_client: Any = client.ApiClient(client.Configuration(host=credentials.server))
            api_client.rest_client = _Transport(transport)
            yield Admin(api_client, credentials.server)
    finally:
        pool.close()


def _names(manifest: Manifest) -> tuple[str, str]:
    meta = manifest["metadata"]
    return meta["name"], meta.get("namespace", "")
