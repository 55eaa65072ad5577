"""Authentication and authorization of callers: the reviews, their cache, and failures of the hub cluster's API."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hub.errors import ClusterUnreachable, HubError
from hub.report import auth
from hub.report.auth import (
    ACCESS_REVIEWS,
    TOKEN_LIMIT,
    TOKEN_REVIEWS,
    Reviews,
    Unauthenticated,
    Unauthorized,
    Unavailable,
    token_of,
)
from hub.report.server import Listen
from tests.support.clocks import ManualClock
from tests.unit.report.conftest import Where, watching

ALICE = {"username": "alice", "uid": "1", "groups": ["readers"], "extra": {"scopes": ["a"]}}


class Api:
    """A hub cluster that knows the tokens ``good`` (alice, who may get /metrics) and ``nobody`` (no permissions)."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.error: HubError | None = None
        self.garbage: bytes | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109
    ) -> bytes:
        """Answer a TokenReview or a SubjectAccessReview."""
        assert method == "POST"
        spec = json.loads(body or b"")["spec"]
        self.asked.append((path, spec))
        if self.error is not None:
            raise self.error
        if self.garbage is not None:
            return self.garbage
        if path == TOKEN_REVIEWS:
            known = {"good": ALICE, "nobody": {"username": "bob"}}.get(spec["token"])
            return json.dumps({"status": {"authenticated": known is not None, "user": known or {}}}).encode()
        assert path == ACCESS_REVIEWS
        attributes = spec["nonResourceAttributes"]
        allowed = spec["user"] == "alice" and attributes == {"path": "/metrics", "verb": "get"}
        return json.dumps({"status": {"allowed": allowed}}).encode()


def basic(user: str, password: str) -> str:
    """The Authorization header that a browser sends for a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        (basic("", "abc"), "abc"),
        (basic("me", "a:b"), "a:b"),
        ("Basic !!", ""),
        ("Basic " + base64.b64encode(b"\xff\xfe:x").decode(), ""),
        ("Negotiate abc", ""),
        ("Bearer", ""),
        ("Bearer " + "x" * 9000, ""),
        ("Bearer " + "x" * TOKEN_LIMIT, "x" * TOKEN_LIMIT),
        ("Bearer " + "x" * (TOKEN_LIMIT + 1), ""),
        (basic("", "x" * (3 * TOKEN_LIMIT // 2 - 1)), "x" * (3 * TOKEN_LIMIT // 2 - 1)),
        (basic("", "x" * (3 * TOKEN_LIMIT // 2)), ""),
        ("Basic " + base64.b64encode(b"no colon").decode(), ""),
        ("Basic " + "x" * 90000, ""),
        ("", ""),
    ],
)
def test_a_token_comes_as_bearer_or_as_a_browsers_password(header: str, token: str) -> None:
    """Any other header has no token."""
    assert token_of(header) == token


@pytest.mark.parametrize("header", ["Bearer \udc80", "Bearer g\xf6\xf6d", "Basic \udcff"])
async def test_non_utf8_token_is_refused(header: str) -> None:
    """Bytes that are not UTF-8, which aiohttp passes on as surrogates, make a refusal and no error in the log."""
    api = Api()

    with pytest.raises(Unauthenticated):
        await Reviews(api, ManualClock(100.0)).check(header, "/metrics")

    assert not api.asked


async def test_authorized_account_is_admitted() -> None:
    """The SubjectAccessReview contains everything that the TokenReview returned about the account."""
    api = Api()
    await Reviews(api, ManualClock(100.0)).check("Bearer good", "/metrics")
    assert [path for path, _ in api.asked] == [TOKEN_REVIEWS, ACCESS_REVIEWS]
    spec = api.asked[1][1]
    assert (spec["user"], spec["uid"], spec["groups"], spec["extra"]) == ("alice", "1", ["readers"], {"scopes": ["a"]})


@pytest.mark.parametrize(
    ("header", "path", "error"),
    [
        ("", "/metrics", Unauthenticated),
        ("Bearer bad", "/metrics", Unauthenticated),
        ("Bearer nobody", "/metrics", Unauthorized),
        ("Bearer good", "/api/v1/status", Unauthorized),
    ],
)
async def test_callers_without_token_or_permission_are_refused(header: str, path: str, error: type[HubError]) -> None:
    """Callers are refused without a token, with an unknown one, and without the right to the path."""
    with pytest.raises(error):
        await Reviews(Api(), ManualClock(100.0)).check(header, path)


class Reviewed(Api):
    """A hub cluster with given answers to both reviews."""

    def __init__(self, token: Any, access: Any) -> None:
        super().__init__()
        self.answers = {TOKEN_REVIEWS: token, ACCESS_REVIEWS: access}

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_: Any) -> bytes:
        """Answer with the given status."""
        self.asked.append((path, json.loads(body or b"")["spec"]))
        return json.dumps({"status": self.answers[path]}).encode()


@pytest.mark.parametrize(
    ("status", "admitted"),
    [
        ({"allowed": True}, True),
        ({"allowed": True, "denied": False}, True),
        ({"allowed": True, "denied": True}, False),
        ({"allowed": "yes"}, False),
        ({}, False),
        (None, False),
    ],
)
async def test_only_an_allowed_account_that_is_not_denied_is_admitted(status: Any, *, admitted: bool) -> None:
    """Anything but a clear permission is a refusal."""
    reviews = Reviews(Reviewed({"authenticated": True, "user": ALICE}, status), ManualClock(100.0))
    if admitted:
        await reviews.check("Bearer good", "/metrics")
    else:
        with pytest.raises(Unauthorized, match="alice may not get /metrics: grant it with nonResourceURLs"):
            await reviews.check("Bearer good", "/metrics")


@pytest.mark.parametrize("more", [{}, {"uid": None, "groups": None, "extra": None}])
async def test_account_may_have_only_a_name(more: dict[str, Any]) -> None:
    """Missing fields of an account are empty in the SubjectAccessReview."""
    api = Reviewed({"authenticated": True, "user": {"username": "bob", **more}}, {"allowed": True})
    await Reviews(api, ManualClock(100.0)).check("Bearer good", "/healthz")
    assert api.asked[1] == (
        ACCESS_REVIEWS,
        {
            "user": "bob",
            "uid": "",
            "groups": [],
            "extra": {},
            "nonResourceAttributes": {"path": "/endpointslice-hub/healthz", "verb": "get"},
        },
    )


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False, "user": ALICE},
        {"authenticated": "yes", "user": ALICE},
        {"user": ALICE},
        {"authenticated": True},
        {"authenticated": True, "user": {"username": "x", "groups": 3}},
    ],
)
async def test_account_that_is_not_authenticated_is_unknown(status: Any) -> None:
    """An account without authentication is refused even if it is named; no permission is asked for."""
    api = Reviewed(status, {"allowed": True})
    with pytest.raises(Unauthenticated, match="the hub cluster does not know this token"):
        await Reviews(api, ManualClock(100.0)).check("Bearer good", "/metrics")
    assert len(api.asked) == 1


async def test_default_kubernetes_permissions_are_not_enough() -> None:
    """Kubernetes allows every account to get ``/api/*``, so the hub requires a right with its own prefix."""
    api = Api()
    for path, right in (("/", "/endpointslice-hub/"), ("/api/v1/status", "/endpointslice-hub/api/v1/status")):
        with pytest.raises(Unauthorized, match=f"alice may not get {right}: "):
            await Reviews(api, ManualClock(100.0)).check("Bearer good", path)
        assert api.asked[-1][1]["nonResourceAttributes"] == {"path": right, "verb": "get"}


async def test_no_answer_is_a_refusal() -> None:
    """If the API is unreachable or its answer is invalid, the caller is refused, and nothing is cached."""
    api = Api()
    reviews = Reviews(api, ManualClock(100.0))
    api.error = ClusterUnreachable("no route")
    with pytest.raises(Unavailable):
        await reviews.check("Bearer good", "/metrics")
    api.error = None
    for garbage, error in ((b"<html>", Unavailable), (b"[]", Unauthenticated), (b'{"status": 1}', Unauthenticated)):
        api.garbage = garbage
        with pytest.raises(error):
            await Reviews(api, ManualClock(100.0)).check("Bearer good", "/metrics")
    for user in ({}, {"username": ""}, {"username": "x", "extra": 3}, "x"):
        api.garbage = json.dumps({"status": {"authenticated": True, "user": user}}).encode()
        with pytest.raises(Unauthenticated):
            await Reviews(api, ManualClock(100.0)).check("Bearer good", "/metrics")
    api.garbage = None
    await reviews.check("Bearer good", "/metrics")


async def test_an_answer_counts_for_a_minute_and_a_refusal_for_ten_seconds() -> None:
    """Answers are cached by token and path."""
    api, clock = Api(), ManualClock(100.0)
    reviews = Reviews(api, clock)
    for _ in range(3):
        await reviews.check("Bearer good", "/metrics")
    assert len(api.asked) == 2
    clock.time += auth.ALLOWED_SECONDS
    await reviews.check("Bearer good", "/metrics")
    assert len(api.asked) == 4
    for after, questions in ((0.0, 5), (auth.REFUSED_SECONDS - 1, 5), (1.0, 6)):
        clock.time += after
        with pytest.raises(Unauthenticated):
            await reviews.check("Bearer bad", "/metrics")
        assert len(api.asked) == questions


async def test_cached_refusal_holds_no_exception() -> None:
    """The cache holds no exceptions, whose tracebacks would keep the callers' frames with their tokens."""

    class Caller:
        """An object of a request."""

    callers: weakref.WeakSet[Caller] = weakref.WeakSet()
    reviews = Reviews(Api(), ManualClock(100.0))

    async def call() -> None:
        caller = Caller()
        callers.add(caller)
        with contextlib.suppress(Unauthenticated):
            await reviews.check("Bearer bad", "/metrics")

    for _ in range(100):
        await call()
    gc.collect()
    assert len(callers) == 0


async def test_token_is_reviewed_once() -> None:
    """A token, valid or not, is reviewed once, and a right once for each path."""
    api = Api()
    reviews = Reviews(api, ManualClock(100.0))
    await reviews.check("Bearer good", "/metrics")
    for path in ("/", "/api/v1/status", "/api/v1/status"):
        with pytest.raises(Unauthorized):
            await reviews.check("Bearer good", path)
        with pytest.raises(Unauthenticated):
            await reviews.check("Bearer bad", path)
    asked = [path for path, _ in api.asked]
    assert (asked.count(TOKEN_REVIEWS), asked.count(ACCESS_REVIEWS)) == (2, 3)


async def test_expired_answer_is_removed() -> None:
    """An expired answer is removed when the next one is added."""
    clock = ManualClock(100.0)
    reviews = Reviews(Api(), clock)
    for token in ("bad", "worse"):
        with pytest.raises(Unauthenticated):
            await reviews.check(f"Bearer {token}", "/metrics")
        assert len(reviews._users._known) == 1
        clock.time += auth.REFUSED_SECONDS


class Slow(Api):
    """A hub cluster that does not answer before ``may`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.under_way = self.most = 0

    async def request(self, *args: Any, **more: Any) -> bytes:
        """Answer when ``may`` is set."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.may.wait()
            return await super().request(*args, **more)
        finally:
            self.under_way -= 1


async def asked_together(api: Slow, *tokens: str) -> list[BaseException | None]:
    """The results of concurrent callers while the hub cluster is slow."""
    reviews = Reviews(api, ManualClock(100.0))
    calls = [asyncio.create_task(reviews.check(f"Bearer {token}", "/metrics")) for token in tokens]
    for _ in range(10):
        await asyncio.sleep(0)
    api.may.set()
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_strangers_open_few_connections_to_the_hub_cluster() -> None:
    """Concurrent reviews are limited however many unknown tokens arrive, and every caller is refused in the end."""
    api = Slow()
    found = await asked_together(api, *(f"bad{number}" for number in range(100)))
    assert {type(error) for error in found} == {Unauthenticated}
    assert (api.most, len(api.asked)) == (auth.AT_ONCE, 100)


async def test_callers_with_one_token_are_asked_about_once() -> None:
    """Concurrent requests with one token, such as those of a page, share one review."""
    api = Slow()
    assert await asked_together(api, *["good"] * 100) == [None] * 100
    assert [path for path, _ in api.asked] == [TOKEN_REVIEWS, ACCESS_REVIEWS]


async def test_full_cache_drops_refusals_first() -> None:
    """A full cache drops refusals before permissions."""
    api = Api()
    reviews = Reviews(api, ManualClock(100.0))
    await reviews.check("Bearer good", "/metrics")
    for number in range(auth.LIMIT + 10):
        with pytest.raises(Unauthenticated):
            await reviews.check(f"Bearer bad{number}", "/metrics")
    api.asked.clear()
    await reviews.check("Bearer good", "/metrics")
    with pytest.raises(Unauthenticated):
        await reviews.check(f"Bearer bad{auth.LIMIT + 9}", "/metrics")
    assert not api.asked


async def test_full_cache_drops_the_oldest_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth permission in a cache of four displaces only the oldest."""
    monkeypatch.setattr(auth, "LIMIT", 4)
    answers: auth._Answers[int, str] = auth._Answers(ManualClock(100.0))
    asked: list[int] = []

    async def answer(key: int) -> str:
        asked.append(key)
        return "may"

    for key in (1, 2, 3, 4, 5, 2, 3, 4, 5, 1):
        await answers.get(key, partial(answer, key))
    assert asked == [1, 2, 3, 4, 5, 1]


async def test_a_flood_of_tokens_does_not_fill_the_memory() -> None:
    """The cache is bounded, and its keys do not contain tokens."""
    reviews = Reviews(Api(), ManualClock(100.0))
    for number in range(auth.LIMIT + 10):
        with pytest.raises(Unauthenticated):
            await reviews.check(f"Bearer bad{number}", "/metrics")
    assert len(reviews._users._known) <= auth.LIMIT
    assert "bad" not in repr(list(reviews._users._known)[-1])


async def test_the_listener_asks_before_it_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path, including the page's assets, needs a token; browsers are told to ask for a password."""
    api = Api()

    class Asked(Reviews):
        def __init__(self, _: object, clock: Any) -> None:
            super().__init__(api, clock)

    monkeypatch.setattr("hub.report.web.Reviews", Asked)
    async with watching(tmp_path, Listen(Where(), authenticate=True)) as watched:
        for path in ("/", "/events", "/static/page.js", "/api/v1/status", "/nosuch", "/metrics"):
            status, text, headers = await watched.get(path)
            assert status == 401, path
            assert "Basic" in headers["WWW-Authenticate"]
            assert "edge/payments" not in text
        bearer = {"Authorization": "Bearer good"}
        assert (await watched.get("/metrics", headers=bearer))[0] == 200
        assert (await watched.get("/api/v1/status", headers=bearer))[0] == 403
        api.error = ClusterUnreachable("no route to 10.0.0.1")
        status, text, _ = await watched.get("/metrics", headers={"Authorization": "Bearer other"})
        assert status == 503
        assert "10.0.0.1" not in text


async def test_slow_review_gets_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller whose review takes too long gets 503."""
    api = Slow()
    monkeypatch.setattr("hub.report.web.Reviews", lambda _, clock: Reviews(api, clock))
    monkeypatch.setattr("hub.report.web.PATIENCE", 0.1)
    async with watching(tmp_path, Listen(Where(), authenticate=True)) as watched:
        async with asyncio.timeout(10):
            status, text, _ = await watched.get("/metrics", headers={"Authorization": "Bearer good"})
    assert (status, json.loads(text)["detail"]) == (503, "this took too long; try again")
