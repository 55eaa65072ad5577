"""The behaviour of an API server that the hub depends on, checked on a real kube-apiserver and on the simulator."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from tests.contract.client import (
    EVENTS,
    JSON_PATCH,
    LEASES,
    MAPS,
    NAMESPACES,
    NODES,
    SECRETS,
    SERVICES,
    SLICES,
    STRATEGIC,
    Client,
    config_map,
    endpoint_slice,
    node,
    status,
)
from tests.support.allocations import KIND, allocation, define

PODS = "/api/v1/namespaces/default/pods"
STALE = "the object has been modified; please apply your changes to the latest version and try again"
BAD_OPTIONS = 'ListOptions.meta.k8s.io "" is invalid'
BAD_MATCH = f"{BAD_OPTIONS}: resourceVersionMatch: Forbidden"
BAD_VERSION = 'resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax'
KNOWN_FIELDS = '"metadata.name", "metadata.namespace"'


# --- reading and refusals -----------------------------------------------------------------------


async def test_a_missing_object_is_404_with_kind_and_name(server: Client) -> None:
    """The Status of a 404 names resource, group and name."""
    answer = await server.get(f"{SLICES}/nope")
    assert (answer.status, answer.kind) == (404, "application/json")
    assert answer.body == status(
        404,
        "NotFound",
        'endpointslices.discovery.k8s.io "nope" not found',
        {"name": "nope", "group": "discovery.k8s.io", "kind": "endpointslices"},
    )
    core = await server.get(f"{NODES}/nope")
    assert core.body == status(404, "NotFound", 'nodes "nope" not found', {"name": "nope", "kind": "nodes"})


@pytest.mark.parametrize(
    "path", ["/api/v1/frobs", "/api/v1/namespaces/default/nodes", f"{MAPS}/x/status", "/api/v1/configmaps/x"]
)
async def test_an_unknown_resource_is_404_without_details(server: Client, path: str) -> None:
    """The Status of a 404 for an unknown resource has empty details."""
    answer = await server.get(path)
    assert answer.body == status(404, "NotFound", "the server could not find the requested resource", {})


async def test_an_unknown_group_is_404_in_plain_text(server: Client) -> None:
    """The 404 for an unknown API group is plain text, and no Status."""
    answer = await server.get("/apis/nope.example/v1/things")
    assert (answer.status, answer.kind, answer.body) == (404, "text/plain", "404 page not found\n")


@pytest.mark.parametrize(("method", "path"), [("POST", f"{MAPS}/x"), ("PUT", MAPS), ("POST", "/api/v1/configmaps")])
async def test_a_method_that_does_not_fit_is_405(server: Client, method: str, path: str) -> None:
    """POST is allowed only on collections, PUT only on objects."""
    answer = await server.call(method, path, config_map("x"))
    assert answer.body == status(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}
    )


async def test_an_unknown_token_is_401(server: Client) -> None:
    """An unknown token is answered with 401 for every path, without details."""
    for path in (NODES, "/version"):
        answer = await server.call("GET", path, token="wrong")
        assert answer.body == status(401, "Unauthorized", "Unauthorized")


@pytest.mark.parametrize(
    ("method", "path", "subject", "what"),
    [
        ("GET", NODES, "nodes", 'list resource "nodes" in API group "" at the cluster scope'),
        ("GET", f"{NODES}?watch=1", "nodes", 'watch resource "nodes" in API group "" at the cluster scope'),
        ("GET", f"{MAPS}/x", 'configmaps "x"', 'get resource "configmaps" in API group "" in the namespace "default"'),
        (
            "PUT",
            f"{NODES}/n/status",
            'nodes "n"',
            'update resource "nodes/status" in API group "" at the cluster scope',
        ),
        (
            "POST",
            SLICES,
            "endpointslices.discovery.k8s.io",
            'create resource "endpointslices" in API group "discovery.k8s.io" in the namespace "default"',
        ),
    ],
)
async def test_a_missing_right_is_403_and_named(
    server: Client, method: str, path: str, subject: str, what: str
) -> None:
    """The message of a 403 names user, verb, resource and namespace, which are the parts of an RBAC rule."""
    answer = await server.call(method, path, token=server.server.powerless)
    assert (answer.status, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == f'{subject} is forbidden: User "nobody" cannot {what}'


async def test_anonymous_may_see_health_and_version_only(server: Client) -> None:
    """Without a token only the health endpoints and the version are readable; other paths answer 403."""
    ready = await server.call("GET", "/readyz", token=None)
    assert (ready.status, ready.kind, ready.body) == (200, "text/plain", "ok")
    version = await server.call("GET", "/version", token=None)
    assert (version.status, version.body["major"]) == (200, "1")
    refused = await server.call("GET", NODES, token=None)
    assert (refused.status, refused.body["details"]) == (403, {"kind": "nodes"})
    assert 'User "system:anonymous" cannot list resource "nodes"' in refused.body["message"]


async def test_list_items_carry_neither_kind_nor_version(server: Client) -> None:
    """Lists and single objects have kind and apiVersion, items of lists do not."""
    await server.post(MAPS, config_map("a"))
    listed = (await server.get(MAPS, labelSelector="!kubernetes.io/none", fieldSelector="metadata.name=a")).body
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert sorted(listed["items"][0]) == ["metadata"]
    single = (await server.get(f"{MAPS}/a")).body
    assert (single["kind"], single["apiVersion"]) == ("ConfigMap", "v1")


async def test_listing_a_missing_namespace_is_empty(server: Client) -> None:
    """Listing a namespace that does not exist gives an empty list."""
    answer = await server.get("/api/v1/namespaces/nope/configmaps")
    assert (answer.status, answer.body["items"]) == (200, [])


# --- lists ---------------------------------------------------------------------------------------


async def _five(server: Client) -> str:
    for index in range(5):
        labels = {"i": str(index), "parity": "odd" if index % 2 else "even", "ours": ""}
        await server.post(MAPS, config_map(f"m{index}", labels))
    return (await server.post(MAPS, config_map("zz"))).version


async def test_pages_show_the_state_of_the_first_page(server: Client) -> None:
    """Pages with limit and continue show one consistent snapshot, even if objects change meanwhile."""
    await _five(server)
    seen, page = [], await server.get("/api/v1/configmaps", limit=2)
    versions = {page.version}
    await server.post(MAPS, config_map("m9"))
    await server.delete(f"{MAPS}/m4")
    while True:
        assert len(page.body["items"]) <= 2
        seen += page.names
        token = page.body["metadata"].get("continue")
        if not token:
            break
        page = await server.get("/api/v1/configmaps", limit=2, **{"continue": token})
        versions.add(page.version)
    assert [name for name in seen if name[0] in "mz"] == ["m0", "m1", "m2", "m3", "m4", "zz"]
    assert len(versions) == 1


async def test_a_page_counts_what_remains_unless_it_selects(server: Client) -> None:
    """A page has remainingItemCount unless the list uses selectors; the last page has no continue token."""
    await _five(server)
    total = len((await server.get(MAPS)).names)
    page = await server.get(MAPS, limit=2)
    assert page.body["metadata"]["remainingItemCount"] == total - 2
    selected = await server.get(MAPS, limit=2, labelSelector="ours")
    assert "remainingItemCount" not in selected.body["metadata"]
    assert selected.body["metadata"]["continue"]
    whole = await server.get(MAPS, limit=100)
    assert set(whole.body["metadata"]) == {"resourceVersion"}


async def test_version_zero_ignores_the_limit(server: Client) -> None:
    """A list with resourceVersion=0 is served from the watch cache, and ignores the limit."""
    await server.remembered(MAPS, await _five(server))
    answer = await server.get(MAPS, limit=2, resourceVersion=0)
    assert len(answer.names) >= 6
    assert "continue" not in answer.body["metadata"]


async def test_an_exact_version_shows_the_past(server: Client) -> None:
    """Exact shows the state at that version; NotOlderThan, or no match, shows the newer state in the watch cache."""
    await server.post(MAPS, config_map("a"))
    past = (await server.get(MAPS)).version
    now = (await server.post(MAPS, config_map("b"))).version
    await server.remembered(MAPS, now)
    exact = await server.get(MAPS, resourceVersion=past, resourceVersionMatch="Exact")
    assert ("b" in exact.names, exact.version) == (False, past)
    newer = await server.get(MAPS, resourceVersion=past, resourceVersionMatch="NotOlderThan")
    assert ("b" in newer.names, int(newer.version) >= int(now)) == (True, True)
    assert "b" in (await server.get(MAPS, resourceVersion=past)).names


async def test_a_limit_makes_a_version_exact(server: Client) -> None:
    """A list with a limit and a resourceVersion shows the state at that version, like client-go's first relist page."""
    await server.post(MAPS, config_map("a"))
    past = (await server.get(MAPS)).version
    await server.post(MAPS, config_map("b"))
    answer = await server.get(MAPS, resourceVersion=past, limit=100)
    assert ("b" in answer.names, answer.version) == (False, past)


async def test_a_list_at_a_future_version_is_504_with_retry_after(server: Client) -> None:
    """A version that the server has not reached is answered with 504: etcd was restored, or it is the wrong server."""
    answer = await server.get(MAPS, resourceVersion=10**12)
    assert (answer.status, answer.headers["Retry-After"], answer.body["reason"]) == (504, "1", "Timeout")
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    assert answer.body["details"] == {"causes": [cause], "retryAfterSeconds": 1}


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        (
            {"resourceVersion": "abc"},
            400,
            f"invalid resource version: {BAD_VERSION}",
        ),
        ({"limit": "x"}, 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        (
            {"resourceVersionMatch": "Exact"},
            422,
            f"{BAD_MATCH}: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            422,
            f'{BAD_MATCH}: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        (
            {"sendInitialEvents": "true"},
            422,
            f"{BAD_OPTIONS}: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ),
        (
            {"fieldSelector": "foo=1"},
            400,
            '"foo" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
        ({"fieldSelector": "bad"}, 400, "invalid selector: 'bad'; can't understand 'bad'"),
        ({"labelSelector": "app in (x"}, 400, "unable to parse requirement: found '', expected: ',' or ')'"),
        ({"labelSelector": "="}, 400, "found '=', expected: !, identifier, or 'end of string'"),
        (
            {"labelSelector": "a b=c"},
            400,
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
    ],
)
async def test_bad_list_parameters_are_refused(server: Client, query: dict[str, str], code: int, message: str) -> None:
    """Invalid query parameters are answered with 400 or 422 and the reason."""
    answer = await server.get(MAPS, **query)
    assert (answer.status, answer.body["message"]) == (code, message)


async def test_continue_token_excludes_a_version(server: Client) -> None:
    """A continue token has its own version, so another version is refused; an invalid token is answered with 400."""
    await _five(server)
    token = (await server.get(MAPS, limit=2)).body["metadata"]["continue"]
    answer = await server.get(MAPS, limit=2, resourceVersion=5, **{"continue": token})
    assert answer.body["message"] == "specifying resource version is not allowed when using continue"
    garbage = await server.get(MAPS, limit=2, **{"continue": "zzz"})
    assert (garbage.status, garbage.body["message"].partition(":")[0]) == (400, "invalid continue token")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("parity=odd", "m1 m3"),
        ("parity==odd", "m1 m3"),
        ("parity!=odd,ours", "m0 m2 m4"),
        ("parity in (odd,even),i notin (1,2),ours", "m0 m3 m4"),
        ("i in (1)", "m1"),
        ("ours", "m0 m1 m2 m3 m4"),
        ("!ours", "zz"),
        ("i>2", "m3 m4"),
        ("i<2", "m0 m1"),
        ("parity=odd,i=1", "m1"),
        ("ours=", "m0 m1 m2 m3 m4"),
        ("parity=", ""),
        ("parity in ()", ""),
        (" parity = odd , i in ( 3 ) ", "m3"),
    ],
)
async def test_label_selectors(server: Client, selector: str, expected: str) -> None:
    """Selectors choose by equality and by set; an object without the label matches negative selectors."""
    await _five(server)
    listed = await server.get(MAPS, labelSelector=selector)
    assert [name for name in listed.names if name[0] in "mz"] == expected.split()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=m1", ["m1"]),
        ("metadata.name==m1,metadata.namespace=default", ["m1"]),
        ("metadata.name=m1,metadata.namespace=other", []),
    ],
)
async def test_field_selectors_by_name_and_namespace(server: Client, selector: str, expected: list[str]) -> None:
    """Objects can be listed by their name and namespace."""
    await _five(server)
    assert (await server.get("/api/v1/configmaps", fieldSelector=selector)).names == expected


# expired versions


async def test_an_expired_version_is_410(server: Client) -> None:
    """An exact list at an expired version is a 410, a watch a 200 whose only event is a 410; other lists still work."""
    await _five(server)
    past = (await server.get(MAPS)).version
    token = (await server.get(MAPS, limit=2)).body["metadata"]["continue"]
    await server.put(f"{MAPS}/m0", config_map("m0", x="1"))
    await server.put(f"{MAPS}/m0", config_map("m0", x="2"))
    await server.server.forget()
    now = (await server.get(MAPS)).version  # not that of the put: a real server may write objects of its own

    listed = await server.get(MAPS, resourceVersion=past, resourceVersionMatch="Exact")
    assert (listed.status, listed.kind) == (410, "application/json")
    assert listed.body == status(410, "Expired", "The resourceVersion for the provided list is too old.")

    async with server.watch(MAPS, resourceVersion=past) as stream:
        assert (stream.status, stream.kind) == (200, "application/json")
        [event] = await stream.rest()
    assert event["type"] == "ERROR"
    assert {key: event["object"][key] for key in ("kind", "status", "reason", "code")} == {
        "kind": "Status",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
    }

    page = await server.get(MAPS, limit=2, **{"continue": token})
    assert (page.status, page.body["reason"]) == (410, "Expired")
    rest = await server.get(MAPS, **{"continue": page.body["metadata"]["continue"]})
    assert [name for name in rest.names if name[0] == "m"] == ["m2", "m3", "m4"]

    async with server.watch(MAPS, resourceVersion=now, timeoutSeconds=1) as stream:
        assert await stream.rest() == []
    assert (await server.get(MAPS, resourceVersion=past)).status == 200


# --- watches -------------------------------------------------------------------------------------


async def test_a_watch_has_every_later_event_once_and_in_order(server: Client) -> None:
    """A watch from a version has every later event once and in order, past and future ones."""
    start = (await server.post(MAPS, config_map("a"))).version
    versions = [(await server.post(MAPS, config_map("b"))).version]
    async with server.watch(MAPS, resourceVersion=start) as stream:
        assert (stream.status, stream.kind) == (200, "application/json")
        versions += [(await server.put(f"{MAPS}/b", config_map("b", x=str(n)))).version for n in range(3)]
        await server.delete(f"{MAPS}/a")
        events = [await stream.next() for _ in range(5)]
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [
        ("ADDED", "b"),
        ("MODIFIED", "b"),
        ("MODIFIED", "b"),
        ("MODIFIED", "b"),
        ("DELETED", "a"),
    ]
    assert [e["object"]["metadata"]["resourceVersion"] for e in events[:4]] == versions
    assert {(e["object"]["kind"], e["object"]["apiVersion"]) for e in events} == {("ConfigMap", "v1")}


async def test_a_deletion_carries_the_last_state_at_a_new_version(server: Client) -> None:
    """A DELETED event has the version of the deletion, from which another watch can continue."""
    start = (await server.post(MAPS, config_map("a", x="1"))).version
    await server.delete(f"{MAPS}/a")
    async with server.watch(MAPS, resourceVersion=start) as stream:
        event = await stream.next()
    assert (event["type"], event["object"]["data"]) == ("DELETED", {"x": "1"})
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(start)


@pytest.mark.parametrize("query", [{}, {"resourceVersion": 0}])
async def test_watch_without_version_starts_with_existing_objects(server: Client, query: dict[str, int]) -> None:
    """A watch without a version, or from 0, starts with an ADDED event for every object, sorted by name."""
    for name in ("b", "a"):
        last = (await server.post(MAPS, config_map(name, {"t": "1"}))).version
    await server.remembered(MAPS, last)
    async with server.watch(MAPS, labelSelector="t", **query) as stream:
        assert await stream.brief(2) == [("ADDED", "a"), ("ADDED", "b")]
        await server.post(MAPS, config_map("c", {"t": "1"}))
        assert await stream.brief(1) == [("ADDED", "c")]


async def test_a_selecting_watch_sees_objects_come_and_go(server: Client) -> None:
    """An object that loses the label is DELETED, with its last state that had the label; one that gets it is ADDED."""
    start = (await server.post(MAPS, config_map("a", {"t": "1"}, x="1"))).version
    await server.put(f"{MAPS}/a", config_map("a", {"t": "2"}, x="2"))
    await server.put(f"{MAPS}/a", config_map("a", {"t": "2"}, x="3"))
    last = (await server.put(f"{MAPS}/a", config_map("a", {"t": "1"}, x="4"))).version
    async with server.watch(MAPS, resourceVersion=start, labelSelector="t=1") as stream:
        gone, back = await stream.next(), await stream.next()
    assert (gone["type"], gone["object"]["data"], gone["object"]["metadata"]["labels"]) == (
        "DELETED",
        {"x": "1"},
        {"t": "1"},
    )
    assert (back["type"], back["object"]["metadata"]["resourceVersion"]) == ("ADDED", last)


async def test_a_watch_of_a_namespace_sees_no_other(server: Client) -> None:
    """A watch of a namespace has events of that namespace only."""
    start = (await server.get(MAPS)).version
    await server.post("/api/v1/namespaces/kube-public/configmaps", config_map("there"))
    await server.post(MAPS, config_map("here"))
    async with server.watch(MAPS, resourceVersion=start) as stream:
        assert await stream.brief(1) == [("ADDED", "here")]
    async with server.watch("/api/v1/configmaps", resourceVersion=start) as stream:
        assert await stream.brief(2) == [("ADDED", "there"), ("ADDED", "here")]


async def test_a_watch_by_name_sees_one_object(server: Client) -> None:
    """A watch with fieldSelector=metadata.name has events of one object only."""
    start = (await server.get(MAPS)).version
    for name in ("a", "b"):
        await server.post(MAPS, config_map(name))
    async with server.watch(MAPS, resourceVersion=start, fieldSelector="metadata.name=b") as stream:
        assert await stream.brief(1) == [("ADDED", "b")]


async def test_pods_are_selected_by_node(server: Client) -> None:
    """Lists and watches with fieldSelector=spec.nodeName have the Pods of one node only."""
    start = (await server.get(PODS)).version
    for name, node_name in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        spec = {"nodeName": node_name, "containers": [{"name": "main", "image": "none"}]}
        assert (await server.post(PODS, {"metadata": {"name": name}, "spec": spec})).status == HTTPStatus.CREATED
    for path in (PODS, "/api/v1/pods"):
        assert (await server.get(path, fieldSelector="spec.nodeName=n1")).names == ["a", "c"]
        assert (await server.get(path, fieldSelector="spec.nodeName!=n1,metadata.namespace=default")).names == ["b"]
    async with server.watch(PODS, resourceVersion=start, fieldSelector="spec.nodeName=n2") as stream:
        assert await stream.brief(1) == [("ADDED", "b")]


async def test_requested_bookmarks_arrive_before_the_watch_ends(server: Client) -> None:
    """In its last two seconds a watch gets a bookmark, from which the next watch can continue."""
    start = (await server.post(MAPS, config_map("a"))).version
    query = {"fieldSelector": "metadata.name=a", "timeoutSeconds": 3, "allowWatchBookmarks": True}
    async with server.watch(MAPS, resourceVersion=start, **query) as stream:
        unseen = (await server.post(MAPS, config_map("b"))).version  # a bookmark needs a later event
        events = await stream.rest()
    assert {event["type"] for event in events} == {"BOOKMARK"}
    mark = events[-1]["object"]
    assert (mark["kind"], mark["apiVersion"], set(mark["metadata"])) == ("ConfigMap", "v1", {"resourceVersion"})
    assert int(mark["metadata"]["resourceVersion"]) >= int(unseen)


async def test_watch_without_bookmarks_stays_silent(server: Client) -> None:
    """A watch without bookmarks sends nothing, and ends after timeoutSeconds."""
    start = (await server.post(MAPS, config_map("a"))).version
    async with server.watch(MAPS, resourceVersion=start, timeoutSeconds=3) as stream:
        assert await stream.rest() == []


@pytest.mark.parametrize(
    "path",
    [NODES, SERVICES, SLICES, LEASES, NAMESPACES, EVENTS, SECRETS, MAPS],
    ids=["nodes", "services", "slices", "leases", "namespaces", "events", "secrets", "configmaps"],
)
async def test_a_bookmark_is_an_empty_object_of_its_kind(server: Client, path: str) -> None:
    """A bookmark has the required fields of its kind, null or empty, which a decoder must accept."""
    query = {"sendInitialEvents": True, "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": True}
    async with server.watch(path, labelSelector="none=here", **query) as stream:
        mark = (await stream.next())["object"]
    kinds = {
        NODES: ("Node", "v1"),
        SERVICES: ("Service", "v1"),
        SLICES: ("EndpointSlice", "discovery.k8s.io/v1"),
        LEASES: ("Lease", "coordination.k8s.io/v1"),
        NAMESPACES: ("Namespace", "v1"),
        EVENTS: ("Event", "events.k8s.io/v1"),
        SECRETS: ("Secret", "v1"),
        MAPS: ("ConfigMap", "v1"),
    }
    assert (mark.pop("kind"), mark.pop("apiVersion")) == kinds[path]
    assert mark.pop("metadata")["annotations"] == {"k8s.io/initial-events-end": "true"}
    fields = {NODES: ["spec", "status"], SERVICES: ["spec", "status"], NAMESPACES: ["spec", "status"]}
    fields |= {SLICES: ["addressType", "endpoints", "ports"], LEASES: ["spec"], SECRETS: [], MAPS: []}
    fields[EVENTS] = [
        "deprecatedFirstTimestamp",
        "deprecatedLastTimestamp",
        "deprecatedSource",
        "eventTime",
        "regarding",
    ]
    assert sorted(mark) == fields[path]


async def test_a_streaming_list_ends_with_an_annotated_bookmark(server: Client) -> None:
    """With sendInitialEvents a watch has all objects, then an annotated bookmark, then changes."""
    await _five(server)
    query = {"sendInitialEvents": True, "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": True}
    async with server.watch(MAPS, labelSelector="ours", **query) as stream:
        assert await stream.brief(5) == [("ADDED", f"m{n}") for n in range(5)]
        mark = await stream.next()
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await server.delete(f"{MAPS}/m1")
        assert await stream.brief(1) == [("DELETED", "m1")]


async def test_a_watch_without_version_has_the_annotated_bookmark(server: Client) -> None:
    """A watch without a version has the annotated bookmark even without sendInitialEvents."""
    await server.remembered(MAPS, (await server.post(MAPS, config_map("a", {"t": "1"}))).version)
    async with server.watch(MAPS, labelSelector="t", allowWatchBookmarks=True) as stream:
        assert await stream.brief(2) == [("ADDED", "a"), ("BOOKMARK", "")]


async def test_declined_initial_events_are_not_sent(server: Client) -> None:
    """With sendInitialEvents=false a watch starts with the next change."""
    await server.post(MAPS, config_map("a", {"t": "1"}))
    query = {"sendInitialEvents": False, "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": True}
    async with server.watch(MAPS, labelSelector="t", **query) as stream:
        await server.post(MAPS, config_map("b", {"t": "1"}))
        assert await stream.brief(1) == [("ADDED", "b")]


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"resourceVersion": "abc"}, 500, BAD_VERSION),
        ({"timeoutSeconds": "x"}, 400, 'strconv.ParseInt: parsing "x"'),
        (
            {"resourceVersionMatch": "NotOlderThan"},
            422,
            f"{BAD_MATCH}: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (
            {"sendInitialEvents": "true"},
            422,
            f"{BAD_MATCH}: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
    ],
)
async def test_bad_watch_parameters_are_refused(server: Client, query: dict[str, str], code: int, message: str) -> None:
    """Invalid watch parameters are error answers, not events."""
    answer = await server.get(MAPS, watch=1, **query)
    assert answer.status == code
    assert answer.body["message"].startswith(message)


async def test_a_watch_from_a_future_version_is_silent(server: Client) -> None:
    """A watch from a future version is a 200 without events, so the hub must monitor silence and bookmarks."""
    async with server.watch(MAPS, resourceVersion=10**12, timeoutSeconds=2) as stream:
        await server.post(MAPS, config_map("a"))
        assert (stream.status, await stream.rest()) == (200, [])


# --- creating ------------------------------------------------------------------------------------


async def test_created_object_has_server_fields(server: Client) -> None:
    """A created object has uid, version, time and namespace; empty maps and lists are removed."""
    answer = await server.post(MAPS, config_map("a"))
    meta = answer.body["metadata"]
    meta.pop("managedFields", None)
    assert answer.status == 201
    assert sorted(meta) == ["creationTimestamp", "name", "namespace", "resourceVersion", "uid"]
    assert meta["namespace"] == "default"
    assert "data" not in answer.body


async def test_versions_only_rise(server: Client) -> None:
    """All kinds of a cluster share one counter of versions."""
    versions = [
        int((await server.post(MAPS, config_map("a"))).version),
        int((await server.post(NODES, node("n1"))).version),
        int((await server.put(f"{MAPS}/a", config_map("a", x="1"))).version),
        int((await server.get(MAPS)).version),
    ]
    assert versions == sorted(versions)
    assert versions[0] < versions[1] < versions[2]


async def test_a_taken_name_is_409_already_exists(server: Client) -> None:
    """The 409 for an existing name has the reason AlreadyExists, not Conflict."""
    await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))
    answer = await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))
    assert answer.body == status(
        409,
        "AlreadyExists",
        'endpointslices.discovery.k8s.io "a" already exists',
        {"name": "a", "group": "discovery.k8s.io", "kind": "endpointslices"},
    )


async def test_a_generated_name_has_five_more_characters(server: Client) -> None:
    """The name is generateName and five characters; generateName is kept."""
    body = config_map("") | {"metadata": {"generateName": "gn-"}}
    names = [(await server.post(MAPS, body)).body["metadata"] for _ in range(2)]
    assert {meta["generateName"] for meta in names} == {"gn-"}
    assert [len(meta["name"]) for meta in names] == [8, 8]
    assert names[0]["name"] != names[1]["name"]


async def test_a_dry_run_answers_and_stores_nothing(server: Client) -> None:
    """With dryRun=All the object is validated and returned without a version, and nothing is stored."""
    before = (await server.post(SLICES, endpoint_slice("old", "10.0.0.1"))).body
    made = await server.post(SLICES, endpoint_slice("a", "10.0.0.1"), dryRun="All")
    assert (made.status, "resourceVersion" in made.body["metadata"]) == (201, False)
    assert (await server.get(f"{SLICES}/a")).status == 404
    changed = await server.put(f"{SLICES}/old", before | {"endpoints": []}, dryRun="All")
    assert (changed.status, changed.body["endpoints"]) == (200, None)
    assert changed.version == before["metadata"]["resourceVersion"]
    assert (await server.delete(f"{SLICES}/old", dryRun="All")).status == 200
    after = (await server.get(f"{SLICES}/old")).body
    assert after == before
    refused = await server.post(SLICES, endpoint_slice("a"), dryRun="Some")
    assert refused.body["details"]["causes"] == [
        {
            "reason": "FieldValueNotSupported",
            "message": 'Unsupported value: ["Some"]: supported values: "All"',
            "field": "dryRun",
        }
    ]


async def test_creating_with_a_version_is_refused(server: Client) -> None:
    """Creating an object with a resourceVersion is a 500 without a reason, though it is the client's mistake."""
    body = config_map("a") | {"metadata": {"name": "a", "resourceVersion": "5"}}
    answer = await server.post(MAPS, body)
    assert answer.body == status(500, "", "resourceVersion should not be set on objects to be created")


async def test_creating_in_a_missing_namespace_is_404_of_the_namespace(server: Client) -> None:
    """The 404 names the namespace, not the object."""
    answer = await server.post("/api/v1/namespaces/nope/configmaps", config_map("a"))
    assert answer.body == status(404, "NotFound", 'namespaces "nope" not found', {"name": "nope", "kind": "namespaces"})


async def test_creating_in_a_namespace_being_deleted_is_403_with_a_cause(server: Client) -> None:
    """A 403 because the namespace is being deleted has a cause, which a 403 by RBAC does not have."""
    await server.post(NAMESPACES, {"metadata": {"name": "going"}})
    deleted = await server.delete(f"{NAMESPACES}/going")
    assert deleted.body["status"]["phase"] == "Terminating"
    answer = await server.post("/api/v1/namespaces/going/configmaps", config_map("a"))
    assert answer.body == status(
        403,
        "Forbidden",
        'configmaps "a" is forbidden: unable to create new content in namespace going because it is being terminated',
        {
            "name": "a",
            "kind": "configmaps",
            "causes": [
                {
                    "reason": "NamespaceTerminating",
                    "message": "namespace going is being terminated",
                    "field": "metadata.namespace",
                }
            ],
        },
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (config_map("a") | {"kind": "Foo"}, 'Foo in version "v1" cannot be handled as a ConfigMap'),
        (
            config_map("a") | {"metadata": {"name": "a", "namespace": "kube-public"}},
            "the namespace of the provided object",
        ),
        (b"{nope", "the object provided is unrecognized (must be of type ConfigMap)"),
        (b"[1]", "the object provided is unrecognized (must be of type ConfigMap)"),
        (config_map("a") | {"data": {"a": 1}}, 'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: '),
        (
            config_map("a") | {"metadata": {"name": "a", "labels": {"a": 1}}},
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: ',
        ),
    ],
)
async def test_body_of_another_kind_is_400(server: Client, body: object, message: str) -> None:
    """A body of another kind is a BadRequest, and is not validated."""
    answer = await server.post(MAPS, body)
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert answer.body["message"].startswith(message)


async def test_unsupported_content_type_is_415(server: Client) -> None:
    """A body of type text/plain is refused."""
    answer = await server.call("POST", MAPS, config_map("a"), content_type="text/plain")
    assert (answer.status, answer.body["reason"]) == (415, "UnsupportedMediaType")
    patched = await server.patch(f"{MAPS}/a", {}, "application/foo")
    assert patched.body == status(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


# --- updating ------------------------------------------------------------------------------------


async def test_a_stale_put_is_409_conflict(server: Client) -> None:
    """A PUT with a version that is no longer current is refused with a Conflict."""
    old = (await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))).body
    await server.put(f"{SLICES}/a", old | endpoint_slice("a", "10.0.0.2"))
    answer = await server.put(f"{SLICES}/a", old)
    assert answer.body == status(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on endpointslices.discovery.k8s.io "a": {STALE}',
        {"name": "a", "group": "discovery.k8s.io", "kind": "endpointslices"},
    )


async def test_a_put_without_a_version_overwrites(server: Client) -> None:
    """A PUT without a resourceVersion overwrites any version, so the hub always sends one."""
    await server.post(MAPS, config_map("a", x="1"))
    answer = await server.put(f"{MAPS}/a", config_map("a", x="2"))
    assert (answer.status, answer.body["data"]) == (200, {"x": "2"})


async def test_an_identical_put_keeps_the_version(server: Client) -> None:
    """A PUT that changes nothing is a 200 without a new version and without an event."""
    body = (await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))).body
    answer = await server.put(f"{SLICES}/a", body)
    assert (answer.status, answer.body) == (200, body)
    async with server.watch(SLICES, resourceVersion=body["metadata"]["resourceVersion"], timeoutSeconds=1) as stream:
        assert await stream.rest() == []


async def test_a_put_ends_the_tracking_of_managed_fields(server: Client) -> None:
    """Sending a list with one empty entry clears managedFields, and no later PUT or PATCH restores them."""
    made = (await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))).body
    made["metadata"]["managedFields"] = [{}]
    made["endpoints"][0]["addresses"] = ["10.0.0.2"]
    answer = await server.put(f"{SLICES}/a", made)
    assert (answer.status, answer.body["endpoints"][0]["addresses"]) == (200, ["10.0.0.2"])
    assert "managedFields" not in answer.body["metadata"]
    later = await server.put(f"{SLICES}/a", answer.body | {"endpoints": []})
    assert (later.status, "managedFields" in later.body["metadata"]) == (200, False)


async def test_a_put_of_another_order_is_a_change(server: Client) -> None:
    """Endpoints in another order count as a change, so the hub sorts them."""
    body = (await server.post(SLICES, endpoint_slice("a", "10.0.0.1", "10.0.0.2"))).body
    answer = await server.put(f"{SLICES}/a", body | {"endpoints": body["endpoints"][::-1]})
    assert int(answer.version) > int(body["metadata"]["resourceVersion"])
    assert answer.body["metadata"]["generation"] == 2


async def test_server_owned_metadata_cannot_be_put(server: Client) -> None:
    """A PUT cannot change uid and creation time; another uid is a Conflict, because it means another object."""
    body = (await server.post(MAPS, config_map("a"))).body
    meta = {"name": "a", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
    answer = await server.put(f"{MAPS}/a", config_map("a") | {"metadata": meta})
    assert answer.version == body["metadata"]["resourceVersion"]
    other = await server.put(f"{MAPS}/a", config_map("a") | {"metadata": {"name": "a", "uid": "other"}})
    assert (other.status, other.body["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: other" in other.body["message"]


async def test_a_put_of_a_missing_object_is_404(server: Client) -> None:
    """A PUT never creates an object."""
    for meta in ({"name": "a"}, {"name": "a", "resourceVersion": "5"}):
        answer = await server.put(f"{MAPS}/a", config_map("a") | {"metadata": meta})
        assert answer.status == 404


async def test_a_put_needs_the_name_of_its_path(server: Client) -> None:
    """A PUT whose object has no name, or another one than the path, is a 400."""
    await server.post(MAPS, config_map("a"))
    other = await server.put(f"{MAPS}/a", config_map("b"))
    assert other.body == status(400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)")
    none = await server.put(f"{MAPS}/a", {"metadata": {}})
    assert none.body == status(
        400,
        "BadRequest",
        "the name of the object (a based on URL) was undeterminable: name must be provided",
    )


async def test_generation_counts_content_and_labels(server: Client) -> None:
    """The generation of an EndpointSlice counts changes of content and labels, but not of annotations."""
    body = (await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))).body
    seen = [body["metadata"]["generation"]]
    for patch in (
        {"metadata": {"annotations": {"k": "v"}}},
        {"metadata": {"labels": {"k": "v"}}},
        {"endpoints": None},
    ):
        seen.append((await server.patch(f"{SLICES}/a", patch)).body["metadata"]["generation"])
    assert seen == [1, 1, 2, 3]


async def test_generation_of_an_allocation_counts_its_spec(server: Client, request: pytest.FixtureRequest) -> None:
    """The generation of a NetIPAllocation counts changes of the spec, but neither of the metadata nor of the status."""
    if "hub_cluster" in request.fixturenames:
        await asyncio.to_thread(define, request.getfixturevalue("hub_cluster").api)
    seen = [(await server.post(KIND, allocation("a"))).body["metadata"]["generation"]]
    for path, patch in (
        (f"{KIND}/a", {"metadata": {"annotations": {"k": "v"}, "labels": {"k": "v"}}}),
        (f"{KIND}/a/status", {"status": {"writer": "hub-0"}}),
        (f"{KIND}/a", {"spec": {"reconcileInterval": 60}}),
    ):
        seen.append((await server.patch(path, patch)).body["metadata"]["generation"])
    assert seen == [1, 1, 1, 2]


# --- the status subresource ----------------------------------------------------------------------


async def test_a_status_write_leaves_the_spec(server: Client) -> None:
    """A PUT of /status changes the status and labels, and ignores the spec."""
    body = (await server.post(NODES, node("n1"))).body
    body["spec"]["unschedulable"] = True
    body["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.9"}]
    body["metadata"]["labels"] = {"new": "1"}
    answer = (await server.put(f"{NODES}/n1/status", body)).body
    assert "unschedulable" not in answer["spec"]
    assert answer["status"]["addresses"] == [{"type": "InternalIP", "address": "10.0.0.9"}]
    assert answer["metadata"]["labels"] == {"new": "1"}


async def test_a_spec_write_leaves_the_status(server: Client) -> None:
    """A PUT of the object ignores its status."""
    body = (await server.post(NODES, node("n1"))).body
    body["spec"]["unschedulable"] = True
    body["status"]["addresses"] = []
    answer = (await server.put(f"{NODES}/n1", body)).body
    assert answer["spec"]["unschedulable"] is True
    assert answer["status"]["addresses"] == [{"type": "InternalIP", "address": "10.0.0.1"}]


async def test_a_new_node_is_tainted_not_ready(server: Client) -> None:
    """Admission adds a taint to a new Node, which a controller removes once the Node is Ready."""
    answer = (await server.post(NODES, node("n1"))).body
    assert answer["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert answer["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}
    ]


async def test_conditions_are_patched_by_type(server: Client) -> None:
    """A strategic merge patch changes or adds the condition that it names, and keeps other conditions."""
    await server.post(NODES, node("n1"))
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}]}}
    answer = await server.patch(f"{NODES}/n1/status", patch, STRATEGIC)
    assert [(c["type"], c["status"]) for c in answer.body["status"]["conditions"]] == [
        ("Ready", "False"),
        ("Disk", "False"),
    ]


# --- patching ------------------------------------------------------------------------------------


async def test_a_merge_patch_merges_and_null_removes(server: Client) -> None:
    """A merge patch follows RFC 7386; if it changes nothing, the version stays."""
    await server.post(MAPS, config_map("a", {"x": "1", "y": "1"}))
    answer = await server.patch(f"{MAPS}/a", {"metadata": {"labels": {"x": None, "z": "1"}}})
    assert answer.body["metadata"]["labels"] == {"y": "1", "z": "1"}
    again = await server.patch(f"{MAPS}/a", {"metadata": {"labels": {"z": "1"}}})
    assert again.version == answer.version


async def test_a_json_patch_adds_replaces_and_removes(server: Client) -> None:
    """A JSON patch follows RFC 6902, including escaped slashes."""
    await server.post(MAPS, config_map("a", {"example.com/x": "1", "y": "1"}))
    operations = [
        {"op": "replace", "path": "/metadata/labels/example.com~1x", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/y"},
        {"op": "add", "path": "/data", "value": {"k": "v"}},
    ]
    answer = (await server.patch(f"{MAPS}/a", operations, JSON_PATCH)).body
    assert (answer["metadata"]["labels"], answer["data"]) == ({"example.com/x": "2"}, {"k": "v"})


async def test_a_patch_with_a_stale_version_is_409(server: Client) -> None:
    """A patch with a resourceVersion that is no longer current is a Conflict."""
    await server.post(MAPS, config_map("a"))
    answer = await server.patch(f"{MAPS}/a", {"metadata": {"resourceVersion": "1"}, "data": {"a": "b"}})
    assert answer.body["message"] == f'Operation cannot be fulfilled on configmaps "a": {STALE}'


async def test_a_patch_is_validated(server: Client) -> None:
    """A patch with an invalid result is a 422, and a patch of a missing object is a 404."""
    await server.post(SLICES, endpoint_slice("a", "10.0.0.1"))
    answer = await server.patch(f"{SLICES}/a", {"endpoints": [{"addresses": ["127.0.0.1"]}]})
    assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, "endpoints[0].addresses[0]")
    assert (await server.patch(f"{SLICES}/b", {})).status == 404


# --- deleting ------------------------------------------------------------------------------------


async def test_a_deletion_answers_with_a_status(server: Client) -> None:
    """The Status of a deletion names the object; deleting it again is a 404."""
    uid = (await server.post(SLICES, endpoint_slice("a"))).body["metadata"]["uid"]
    answer = await server.delete(f"{SLICES}/a")
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "a", "group": "discovery.k8s.io", "kind": "endpointslices", "uid": uid},
    }
    assert (await server.delete(f"{SLICES}/a")).status == 404


async def test_deleting_a_service_answers_with_the_service(server: Client) -> None:
    """Deleting a Service returns the Service instead of a Status."""
    await server.post(SERVICES, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})
    assert (await server.delete(f"{SERVICES}/a")).body["kind"] == "Service"


async def test_preconditions_guard_a_deletion(server: Client) -> None:
    """A deletion with another uid or resourceVersion than the object's is a Conflict."""
    body = (await server.post(SLICES, endpoint_slice("a"))).body["metadata"]
    wrong = await server.delete(f"{SLICES}/a", {"preconditions": {"uid": "other"}})
    assert wrong.body == status(
        409,
        "Conflict",
        'Operation cannot be fulfilled on EndpointSlice.discovery.k8s.io "a": the UID in the precondition (other) does '
        f"not match the UID in record ({body['uid']}). The object might have been deleted and then recreated",
        {"name": "a", "group": "discovery.k8s.io", "kind": "EndpointSlice"},
    )
    stale = await server.delete(f"{SLICES}/a", {"preconditions": {"resourceVersion": "1"}})
    assert stale.body["message"] == (
        'Operation cannot be fulfilled on EndpointSlice.discovery.k8s.io "a": the ResourceVersion in the precondition '
        f"(1) does not match the ResourceVersion in record ({body['resourceVersion']}). The object might have been "
        "modified"
    )
    right = {"preconditions": {"uid": body["uid"], "resourceVersion": body["resourceVersion"]}}
    assert (await server.delete(f"{SLICES}/a", right)).status == 200


async def test_a_finalizer_holds_an_object(server: Client) -> None:
    """DELETE only marks an object that has finalizers; removing the last finalizer deletes it."""
    start = (await server.post(SLICES, endpoint_slice("a"))).version
    await server.patch(f"{SLICES}/a", {"metadata": {"finalizers": ["example.com/f"]}})
    answer = await server.delete(f"{SLICES}/a")
    assert answer.body["metadata"]["deletionTimestamp"]
    assert (await server.get(f"{SLICES}/a")).status == 200
    assert (await server.patch(f"{SLICES}/a", {"metadata": {"finalizers": None}})).status == 200
    assert (await server.get(f"{SLICES}/a")).status == 404
    async with server.watch(SLICES, resourceVersion=start) as stream:
        assert await stream.brief(3) == [("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_collection_is_deleted_by_selector(server: Client) -> None:
    """DELETE of a collection returns the deleted objects."""
    for name, label in (("a", "1"), ("b", "2")):
        await server.post(SLICES, endpoint_slice(name) | {"metadata": {"name": name, "labels": {"t": label}}})
    answer = await server.delete(SLICES, labelSelector="t=1")
    assert (answer.body["kind"], answer.names) == ("EndpointSliceList", ["a"])
    assert (await server.get(SLICES, labelSelector="t")).names == ["b"]
