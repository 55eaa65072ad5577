"""A client of a Kubernetes API for tests: small and synchronous. It shares no code with the hub.

It blocks: inside a coroutine that shares its loop with the hub, call it through ``asyncio.to_thread``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

Object = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class ApiRefused(Exception):
    """An answer that is an error, or a call without an answer.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        reason: the Status object's reason, such as ``Conflict``; "" if the body is no Status.
        body: the decoded Status; {} if the body is none.
        headers: the answer's headers, by name in lower case.
    """

    def __init__(self, call: str, status: int, text: str, headers: Mapping[str, str]) -> None:
        body: Any = None
        with contextlib.suppress(ValueError):
            body = json.loads(text)
        self.status = status
        self.body: Object = body if isinstance(body, dict) else {}
        self.reason = str(self.body.get("reason", ""))
        self.headers = dict(headers)
        super().__init__(f"{call}: {status} {self.body.get('message') or text[:256]}")


class Api:
    """Calls one API server as one user, over one kept connection. Threads may use it in turn.

    Paths are whole paths (``/api/v1/nodes``). Keyword arguments become the query; those that are None are omitted.

    Attributes:
        warnings: the ``Warning`` headers of the last answer.
    """

    def __init__(self, url: str, tls: ssl.SSLContext, token: str | None = None, timeout: float = 10.0) -> None:
        self.url = url
        self._address = urlsplit(url)
        self._tls = tls
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: http.client.HTTPSConnection | None = None
        self.warnings: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        with self._lock:
            self._drop()

    def get(self, path: str, **query: Any) -> Object:
        """Read one object, or one page of a list with its metadata."""
        return self.call("GET", path, query=query)

    def list(self, path: str, **query: Any) -> list[Object]:
        """All items of a collection, from all pages."""
        page = self.get(path, **query)
        items: list[Object] = page["items"] or []
        while token := page["metadata"].get("continue"):
            page = self.get(path, **{**query, "continue": token})
            items += page["items"]
        return items

    def exists(self, path: str) -> bool:
        """Whether the object at a path exists."""
        return self.find(path) is not None

    def find(self, path: str) -> Object | None:
        """Read an object; None if it does not exist."""
        try:
            return self.get(path)
        except ApiRefused as refused:
            if refused.status != http.client.NOT_FOUND:
                raise
            return None

    def may_get(self, path: str) -> bool:
        """Whether this user has the right to read the path yet: the server applies a new role with a delay."""
        try:
            self.find(path)
        except ApiRefused as refused:
            if refused.status != http.client.FORBIDDEN:
                raise
            return False
        return True

    def post(self, path: str, body: Object, **query: Any) -> Object:
        """Create ``body`` in the collection ``path``."""
        return self.call("POST", path, body, query)

    def put(self, path: str, body: Object, **query: Any) -> Object:
        """Replace the object at ``path``."""
        return self.call("PUT", path, body, query)

    def patch(self, path: str, body: Any, kind: str = MERGE_PATCH, **query: Any) -> Object:
        """Patch the object at ``path``; ``kind`` is the patch's media type."""
        return self.call("PATCH", path, body, query, kind)

    def delete(self, path: str, **query: Any) -> Object:
        """Delete an object, or everything in a collection that the selectors in ``query`` match."""
        return self.call("DELETE", path, query=query)

    def watch(self, path: str, *, timeout: float = 5.0, **query: Any) -> Iterator[Object]:
        """Yield the events of a watch that lasts about ``timeout`` seconds, including ERROR events."""
        query = {"watch": "true", "timeoutSeconds": max(1, round(timeout)), **query}
        with contextlib.closing(self._connect(timeout + self._timeout)) as connection:
            answer = self._send(connection, "GET", path, query)
            with answer:
                if answer.status != http.client.OK:
                    raise self._refused("WATCH", path, answer, answer.read())
                for line in answer:
                    yield json.loads(line)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send any call.

        Raises:
            ApiRefused: the answer is an error, or there is none.
        """
        with self._lock:
            try:
                return self._answer(method, path, body, query or {}, content_type)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise ApiRefused(f"{method} {path}", 0, f"{type(error).__name__}: {error}", {}) from error

    def _answer(self, method: str, path: str, body: Any, query: Mapping[str, Any], content_type: str) -> Object:
        kept = self._connection
        connection = self._connection = kept or self._connect(self._timeout)
        try:
            answer = self._send(connection, method, path, query, body, content_type)
        except (ConnectionError, ssl.SSLEOFError, http.client.HTTPException):
            # The server may have restarted since the kept connection was opened, so try once more on a new one.
            if kept is None:
                raise
            self._drop()
            connection = self._connection = self._connect(self._timeout)
            answer = self._send(connection, method, path, query, body, content_type)
        data = answer.read()
        self.warnings = answer.headers.get_all("Warning") or []
        if answer.will_close:
            self._drop()
        if not http.client.OK <= answer.status < http.client.MULTIPLE_CHOICES:
            raise self._refused(method, path, answer, data)
        decoded = json.loads(data) if data[:1] in (b"{", b"[") else {"text": data.decode(errors="replace")}
        return decoded if isinstance(decoded, dict) else {"items": decoded}

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Any = None,
        content_type: str = "application/json",
    ) -> http.client.HTTPResponse:
        given = {key: value for key, value in query.items() if value is not None}
        target = quote(path) + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": content_type}
        connection.request(method, target, data, headers)
        return connection.getresponse()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        address = self._address
        return http.client.HTTPSConnection(address.hostname or "", address.port, timeout=timeout, context=self._tls)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @staticmethod
    def _refused(method: str, path: str, answer: http.client.HTTPResponse, data: bytes) -> ApiRefused:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return ApiRefused(f"{method} {path}", answer.status, data.decode(errors="replace"), headers)


def refusal(account: Api, method: str, path: str, body: Object) -> str:
    """Why the account's request is refused; "" if it is accepted. Nothing is changed."""
    kind = MERGE_PATCH if method == "PATCH" else "application/json"
    try:
        account.call(method, path, body or None, {"dryRun": "All"}, kind)
    except ApiRefused as refused:
        return str(refused)
    return ""
