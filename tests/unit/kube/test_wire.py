"""Decoding of the API's JSON: optional fields may be missing or null, and invalid lists are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hub_testkit import make_node, make_service, make_slice

from hub.errors import BadAnswer
from hub.kube.wire import (
    NODES,
    SERVICES,
    SLICES,
    Resource,
    decode_config_map,
    decode_identity,
    decode_secret,
    decode_slice,
    encode_slice,
    slices_reusing,
)
from hub.model import (
    Conditions,
    ConfigMap,
    Endpoint,
    Node,
    NodeAddress,
    ObjectKey,
    OwnerReference,
    Port,
    Service,
    ServicePort,
    Slice,
    Taint,
)

RESOURCES: dict[str, Resource[Any]] = {"NodeList": NODES, "ServiceList": SERVICES, "EndpointSliceList": SLICES}

AsJson = dict[str, Any]


def page(kind: str, *items: AsJson, version: str = "7", token: str | None = None) -> bytes:
    """A list as the API sends it."""
    metadata = {"resourceVersion": version} | ({"continue": token} if token is not None else {})
    return json.dumps({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": list(items)}).encode()


def event(kind: str, obj: Any) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode()


def versioned(obj: AsJson, version: str = "9") -> AsJson:
    """An object with this resourceVersion."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}


def nodes(*items: AsJson) -> dict[str, Node]:
    """The decoded Nodes of a page."""
    return NODES.list_page(page("NodeList", *items))[0]


# --- lists ---------------------------------------------------------------------------------------


def test_list_gives_objects_by_key_version_and_token() -> None:
    """A page of cluster-scoped objects is keyed by name."""
    objects, version, token = NODES.list_page(page("NodeList", make_node("n1"), make_node("n2"), token="more"))
    assert (list(objects), version, token) == (["n1", "n2"], "7", "more")


def test_namespaced_objects_are_keyed_by_namespace_and_name() -> None:
    """Services of the same name in two namespaces are two objects."""
    objects, _, _ = SERVICES.list_page(page("ServiceList", make_service("a", "web"), make_service("b", "web")))
    assert list(objects) == [ObjectKey("a", "web"), ObjectKey("b", "web")]


@pytest.mark.parametrize("items", ["null", "[]"])
@pytest.mark.parametrize("kind", RESOURCES)
def test_list_of_nothing_is_empty(kind: str, items: str) -> None:
    """Go encodes an empty list as null or []; the continue token may be missing."""
    body = f'{{"kind":"{kind}","metadata":{{"resourceVersion":"7"}},"items":{items}}}'.encode()
    assert RESOURCES[kind].list_page(body) == ({}, "7", "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Please log in</html>",
        b"null",
        b"[]",
        b'"NodeList"',
        page("NodeList", make_node("n1"))[:-1],
        page("NodeList") + b"x",
        page("PodList"),
        page("List"),
        page(""),
        page("NodeList", version=""),
        b'{"kind":"NodeList","items":[]}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":"7"}}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":7},"items":[]}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":"7"},"items":[{}]}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":"7"},"items":[null]}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":"7"},"items":{}}',
        b'{"kind":"Status","metadata":{},"status":"Failure","code":500}',
    ],
)
def test_invalid_list_is_a_bad_answer(body: bytes) -> None:
    """Garbage, a truncated list, another kind or a missing version is an error, not an empty list."""
    with pytest.raises(BadAnswer, match="/api/v1/nodes"):
        NODES.list_page(body)
    with pytest.raises(BadAnswer, match="/endpointslices"):
        slices_reusing(unknown).list_page(body.replace(b"NodeList", b"EndpointSliceList"))


ODD_BYTES = {
    "no utf-8": b'{"kind":"NodeList","metadata":{"resourceVersion":"\xff"},"items":[]}',
    "brackets": b'{"x":' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", ODD_BYTES)
def test_list_of_odd_bytes_is_a_bad_answer(name: str) -> None:
    """Bytes that make the decoder raise other errors are a BadAnswer too."""
    with pytest.raises(BadAnswer):
        NODES.list_page(ODD_BYTES[name])
    with pytest.raises(BadAnswer):
        slices_reusing(unknown).list_page(ODD_BYTES[name].replace(b"NodeList", b"EndpointSliceList"))


def test_slices_that_are_known_in_their_state_are_not_decoded_again() -> None:
    """Only new and changed slices of a list are decoded; the others are the same objects as before."""
    kept, changed, new = (make_slice("edge", name, "web", ["10.0.0.1"]) for name in ("kept", "changed", "new"))
    before = SLICES.list_page(page("EndpointSliceList", versioned(kept, "3"), versioned(changed, "4")))[0]
    body = page("EndpointSliceList", versioned(kept, "3"), versioned(changed, "6"), versioned(new, "7"), token="more")
    asked = []

    def known(key: ObjectKey, version: str, listed: str) -> Slice | None:
        asked.append((key.name, version, listed))
        return found if (found := before.get(key)) is not None and found.resource_version == version else None

    found, version, token = slices_reusing(known).list_page(body)

    assert (found, version, token) == SLICES.list_page(body)
    assert [key.name for key, value in found.items() if value is before.get(key)] == ["kept"]
    assert asked == [("kept", "3", "7"), ("changed", "6", "7"), ("new", "7", "7")]
    assert slices_reusing(unknown).list_page(body)[0] == found


def unknown(*_: object) -> None:
    """Stands for a store that has no slices."""


# --- events --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_event_gives_type_key_object_and_version(kind: str) -> None:
    """ADDED, MODIFIED and DELETED events have an object."""
    found = NODES.event(event(kind, versioned(make_node("n1"))))
    assert (found.type, found.key, found.object.name, found.resource_version) == (kind, "n1", "n1", "9")


def test_bookmark_is_a_version_without_an_object() -> None:
    """A bookmark has only a resourceVersion."""
    found = NODES.event(event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "9"}}))
    assert (found.type, found.object, found.resource_version) == ("BOOKMARK", None, "9")


@pytest.mark.parametrize("resource", [NODES, SLICES, SERVICES], ids=lambda resource: resource.name)
def test_bookmark_of_an_older_server_is_one(resource: Resource[Any]) -> None:
    """A bookmark with ``creationTimestamp: null``, as up to Kubernetes 1.33, is accepted."""
    line = event("BOOKMARK", {"metadata": {"resourceVersion": "9", "creationTimestamp": None}, "spec": {}})
    assert resource.event(line).resource_version == "9"


def test_bookmark_with_annotations_is_one_too() -> None:
    """A bookmark may have annotations, which mark the end of a streaming list."""
    meta = {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}
    assert SLICES.event(event("BOOKMARK", {"metadata": meta})).resource_version == "9"


def test_error_event_has_its_status() -> None:
    """An ERROR event, such as 410, has a Status and no resourceVersion."""
    found = NODES.event(event("ERROR", {"kind": "Status", "metadata": {}, "code": 410, "message": "too old"}))
    assert found.status is not None
    assert (found.type, found.status.code, found.status.message, found.resource_version) == (
        "ERROR",
        410,
        "too old",
        "",
    )


@pytest.mark.parametrize("spec", [5, {"taints": 5}, {"unschedulable": "yes"}])
def test_object_of_an_unknown_shape_has_key_and_version_only(spec: Any) -> None:
    """An object that does not decode has only its key and version, so the watch can continue."""
    found = NODES.event(event("MODIFIED", {**versioned(make_node("n1")), "spec": spec}))
    assert (found.type, found.key, found.object, found.resource_version) == ("MODIFIED", "n1", None, "9")


def test_event_of_an_unknown_type_has_no_object() -> None:
    """An event of an unknown type has no object."""
    assert NODES.event(event("RENAMED", versioned(make_node("n1")))).object is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"{}",
        b"[]",
        b"null",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":null}',
        b'{"type":"ADDED","object":{}}',
        b'{"type":5,"object":{"metadata":{}}}',
        b'{"type":"ERROR","object":null}',
        event("ADDED", make_node("n1"))[:-2],
    ],
)
@pytest.mark.parametrize("resource", [NODES, SLICES, SERVICES], ids=lambda resource: resource.name)
def test_invalid_event_is_a_bad_answer(resource: Resource[Any], line: bytes) -> None:
    """A truncated line, an empty line and other JSON are refused."""
    with pytest.raises(BadAnswer):
        resource.event(line)


ODD_LINES = {
    "no utf-8": b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}',
    "brackets": b'{"type":"ADDED","object":{"x":' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", ODD_LINES)
def test_line_of_odd_bytes_is_a_bad_answer(name: str) -> None:
    """Bytes that make the decoder raise other errors are a BadAnswer too."""
    with pytest.raises(BadAnswer):
        NODES.event(ODD_LINES[name])


@pytest.mark.parametrize("name", ODD_LINES)
def test_peek_at_odd_bytes_finds_nothing(name: str) -> None:
    """Peeking never raises, whatever the line contains."""
    assert SLICES.peek is not None
    assert SLICES.peek(ODD_LINES[name])[1] == ""


def test_peek_finds_key_and_version() -> None:
    """Peeking finds the key and resourceVersion, which suffice to recognize an echo."""
    assert SLICES.peek is not None
    line = event("MODIFIED", versioned(make_slice("edge", "web-1", "web", ["10.0.0.1"])))
    assert SLICES.peek(line) == (ObjectKey("edge", "web-1"), "9")


@pytest.mark.parametrize("line", [b"garbage", b"{}", event("ERROR", {"kind": "Status", "code": 410})])
def test_peek_finds_nothing_in_errors_and_garbage(line: bytes) -> None:
    """Peeking at errors and garbage finds nothing, so that they are decoded."""
    assert SLICES.peek is not None
    assert SLICES.peek(line)[1] == ""


# --- Nodes ---------------------------------------------------------------------------------------


def test_decoded_node_has_only_the_used_fields() -> None:
    """A decoded Node has the fields that the hub uses, and no others; the first Ready condition counts."""
    conditions = [
        {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "2025-01-01T00:00:00Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "KubeletReady"},
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-03T00:00:00Z"},
    ]
    wire: AsJson = {
        "metadata": {
            "name": "n1",
            "uid": "u",
            "labels": {"a": "b"},
            "creationTimestamp": "2025-12-31T00:00:00Z",
            "deletionTimestamp": "2026-01-02T00:00:00Z",
        },
        "spec": {
            "podCIDR": "10.1.0.0/24",
            "providerID": "aws:///eu-1a/i-1",
            "unschedulable": True,
            "taints": [{"key": "k", "effect": "NoSchedule"}, {"key": "k2", "effect": "NoExecute", "value": "v"}],
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "10.7.0.1"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
            ],
            "conditions": conditions,
            "images": [{"sizeBytes": 1}],
            "nodeInfo": {"systemUUID": "ec2-1", "osImage": "x"},
        },
    }
    assert nodes(wire)["n1"] == Node(
        "n1",
        ready="True",
        ready_since="2026-01-01T00:00:00Z",
        created="2025-12-31T00:00:00Z",
        labels={"a": "b"},
        addresses=(NodeAddress("InternalIP", "10.7.0.1"), NodeAddress("ExternalIP", "203.0.113.1")),
        provider_id="aws:///eu-1a/i-1",
        system_uuid="ec2-1",
        unschedulable=True,
        deleting=True,
        taints=(Taint("k", "NoSchedule"), Taint("k2", "NoExecute", "v")),
    )


@pytest.mark.parametrize(
    "wire",
    [
        {"metadata": {"name": "n1"}},
        {"metadata": {"name": "n1", "labels": None}, "spec": None, "status": None},
        {"metadata": {"name": "n1"}, "spec": {"taints": None}, "status": {"addresses": None, "conditions": None}},
        {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "MemoryPressure", "status": "False"}]}},
    ],
)
def test_node_without_anything_is_unknown(wire: AsJson) -> None:
    """A Node whose kubelet has not reported has no addresses, and its readiness is Unknown."""
    assert nodes(wire)["n1"] == Node("n1")


@pytest.mark.parametrize("ready", ["True", "False", "Unknown"])
def test_readiness_is_the_ready_condition(ready: str) -> None:
    """Readiness is the status of the Ready condition."""
    assert nodes(make_node("n1", ready=ready))["n1"].ready == ready


def test_label_strings_are_shared() -> None:
    """Equal label keys and values are the same string objects."""
    found = nodes(make_node("n1", labels={"zone-of": "eu-central"}), make_node("n2", labels={"zone-of": "eu-central"}))
    assert found["n1"].labels["zone-of"] is found["n2"].labels["zone-of"]


# --- Services ------------------------------------------------------------------------------------


def service(**spec: Any) -> Any:
    """A decoded Service with this spec."""
    body = page("ServiceList", {"metadata": {"namespace": "edge", "name": "web", "uid": "u"}, "spec": spec})
    return SERVICES.list_page(body)[0][ObjectKey("edge", "web")]


def test_decoded_service_has_only_the_used_fields() -> None:
    """A decoded Service has the fields that the hub uses, and no others."""
    wire: AsJson = {
        "metadata": {
            "namespace": "edge",
            "name": "web",
            "uid": "u",
            "resourceVersion": "9",
            "labels": {"a": "b"},
            "annotations": {"c": "d"},
            "deletionTimestamp": "2026-01-02T00:00:00Z",
        },
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": "web"},
            "clusterIP": "10.96.0.7",
            "clusterIPs": ["10.96.0.7", "fd00::7"],
            "ipFamilies": ["IPv4", "IPv6"],
            "publishNotReadyAddresses": True,
            "ports": [
                {
                    "port": 443,
                    "name": "https",
                    "protocol": "UDP",
                    "appProtocol": "h3",
                    "targetPort": 8443,
                    "nodePort": 30443,
                }
            ],
            "healthCheckNodePort": 32000,
            "externalTrafficPolicy": "Local",
            "sessionAffinity": "None",
        },
    }
    assert SERVICES.list_page(page("ServiceList", wire))[0] == {
        ObjectKey("edge", "web"): Service(
            "edge",
            "web",
            uid="u",
            kind="LoadBalancer",
            selector=True,
            publish_not_ready=True,
            families=("IPv4", "IPv6"),
            cluster_ips=("10.96.0.7", "fd00::7"),
            ports=(ServicePort(443, "https", "UDP", "h3", 8443, 30443),),
            labels={"a": "b"},
            annotations={"c": "d"},
            health_check_node_port=32000,
            deleting=True,
            resource_version="9",
            local_policies=("externalTrafficPolicy",),
        )
    }


@pytest.mark.parametrize("spec", [{}, {"spec": None}, {"spec": {"ports": None, "clusterIPs": None}}])
def test_service_without_anything_is_a_plain_one(spec: AsJson) -> None:
    """A Service with only a name has the values that the API would set."""
    wire = {"metadata": {"namespace": "edge", "name": "web"}, **spec}
    assert SERVICES.list_page(page("ServiceList", wire))[0] == {ObjectKey("edge", "web"): Service("edge", "web")}


@pytest.mark.parametrize(("selector", "has"), [(None, False), ({}, False), ({"a": "b"}, True)])
def test_empty_selector_counts_as_no_selector(selector: Any, has: bool) -> None:
    """An empty selector counts as no selector."""
    assert service(selector=selector).selector is has


def test_headless_service_has_no_cluster_ips() -> None:
    """The cluster IP ``None`` is not an address."""
    found = service(clusterIP="None", clusterIPs=["None"])
    assert (found.headless, found.cluster_ips) == (True, ())


def test_service_ports_may_be_named_or_numbered() -> None:
    """A targetPort may be a number, a name or missing."""
    ports = [{"port": 80, "targetPort": 8080}, {"port": 443, "targetPort": "tls", "nodePort": 30443}, {"port": 1}]
    assert [port.target_port for port in service(ports=ports).ports] == [8080, "tls", None]
    assert [port.node_port for port in service(ports=ports).ports] == [None, 30443, None]


@pytest.mark.parametrize(
    ("spec", "local"),
    [
        ({}, ()),
        ({"externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster"}, ()),
        ({"externalTrafficPolicy": "Local", "internalTrafficPolicy": None}, ("externalTrafficPolicy",)),
        (
            {"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"},
            ("externalTrafficPolicy", "internalTrafficPolicy"),
        ),
    ],
)
def test_service_local_policies_are_kept(spec: dict[str, Any], local: tuple[str, ...]) -> None:
    """Traffic policies with the value Local are kept."""
    assert service(**spec).local_policies == local


def test_service_without_families_is_ipv4() -> None:
    """A Service without ipFamilies, such as an ExternalName Service, counts as IPv4."""
    assert service(ipFamilies=None).families == ("IPv4",)


# --- EndpointSlices ------------------------------------------------------------------------------

FULL = Slice(
    "edge",
    "web-1",
    "IPv4",
    (Endpoint(("10.0.0.1",), Conditions(ready=True, serving=None, terminating=False), zone="eu-1"),),
    (Port("https", 443, "TCP"),),
    {"kubernetes.io/service-name": "web"},
    {"a": "b"},
    (OwnerReference("v1", "Service", "web", "u"),),
    "uid-1",
    "9",
)


def test_slice_survives_a_round_trip() -> None:
    """Decoding an encoded slice gives the same slice."""
    assert decode_slice(encode_slice(FULL)) == FULL


@pytest.mark.parametrize(("version", "tracked"), [("9", {"managedFields": [{}]}), ("", {})])
def test_a_write_of_an_existing_slice_ends_the_tracking_of_fields(version: str, tracked: AsJson) -> None:
    """A slice without a resourceVersion is created, and has no managedFields."""
    written = json.loads(encode_slice(Slice("edge", "web-1", "IPv4", resource_version=version)))
    assert written == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1",
            "namespace": "edge",
            **({"resourceVersion": version} if version else {}),
            **tracked,
        },
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
    }


@pytest.mark.parametrize("stamp", [None, "2026-01-02T00:00:00Z"])
def test_slice_with_a_deletion_timestamp_is_being_deleted(stamp: str | None) -> None:
    """A slice without the optional fields is empty, and being deleted only if it has a deletionTimestamp."""
    meta = {"namespace": "edge", "name": "a", "uid": "u", "resourceVersion": "9", "deletionTimestamp": stamp}
    expected = Slice("edge", "a", "IPv4", uid="u", resource_version="9", deleting=stamp is not None)
    assert decode_slice(json.dumps({"metadata": meta}).encode()) == expected


@pytest.mark.parametrize(("data", "kept"), [({"a": "b"}, {"a": "b"}), (None, {})])
def test_config_map_has_its_data(data: AsJson | None, kept: AsJson) -> None:
    """A ConfigMap without data is empty."""
    body = json.dumps({"metadata": {"namespace": "edge", "name": "a"}, "data": data}).encode()
    assert decode_config_map(body) == ConfigMap("edge", "a", kept)


@pytest.mark.parametrize("nothing", ["null", "[]"])
def test_slice_without_endpoints_and_ports_is_empty(nothing: str) -> None:
    """Empty lists that the API encodes as null are decoded as empty."""
    found = decode_slice(
        f'{{"metadata":{{"name":"a"}},"addressType":"IPv6","endpoints":{nothing},"ports":{nothing}}}'.encode()
    )
    assert (found.address_type, found.endpoints, found.ports) == ("IPv6", (), ())


def test_missing_conditions_stay_missing() -> None:
    """An unknown ``ready`` is not decoded as false."""
    body = json.dumps({"metadata": {"name": "a"}, "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {}}]})
    assert decode_slice(body.encode()).endpoints[0].conditions == Conditions(None, None, None)


@pytest.mark.parametrize("body", [b"", b"garbage", b"{}", b'{"metadata":{},"endpoints":[{}]}'])
def test_undecodable_slice_is_a_bad_answer(body: bytes) -> None:
    """An answer to a write that does not decode is a BadAnswer."""
    with pytest.raises(BadAnswer):
        decode_slice(body)


def test_identity_is_uid_and_version() -> None:
    """The identity in an answer has the uid and resourceVersion."""
    assert decode_identity(b'{"metadata":{"uid":"u","resourceVersion":"9"},"spec":5}') == ("u", "9")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"metadata":{"uid":"u"}}', b'{"kind":"Status","metadata":{}}', b"k8s\0"]
)
def test_identity_of_nothing_is_a_bad_answer(body: bytes) -> None:
    """An answer without a resourceVersion is refused, since the next write needs it."""
    with pytest.raises(BadAnswer):
        decode_identity(body)


@pytest.mark.parametrize("deleting", [False, True])
def test_node_with_deletion_timestamp_is_being_deleted(*, deleting: bool) -> None:
    """A Node is being deleted from the moment that it has a deletionTimestamp."""
    meta = {"name": "n1", **({"deletionTimestamp": "2026-11-21T10:00:00Z"} if deleting else {})}
    body = json.dumps({"kind": "NodeList", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": meta}]})
    assert NODES.list_page(body.encode())[0]["n1"].deleting is deleting


def test_labels_of_nodes_share_their_strings() -> None:
    """A label that repeats the node's name is the same string; other labels are one string in all Nodes."""
    items = [
        {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": "a-zone"}}}
        for name in ("n1", "n2")
    ]
    body = json.dumps({"kind": "NodeList", "metadata": {"resourceVersion": "7"}, "items": items}).encode()
    one, other = NODES.list_page(body)[0].values()
    assert one.labels["kubernetes.io/hostname"] is one.name
    assert one.labels["zone"] is other.labels["zone"]


@pytest.mark.parametrize(
    ("decode", "what"),
    [
        (decode_slice, "an EndpointSlice"),
        (decode_config_map, "a ConfigMap"),
        (decode_secret, "a Secret"),
        (decode_identity, "an object"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"metadata":7}', b'{"metadata":{"name":"\xff"}}'])
def test_decode_error_names_the_expected_kind(decode: Callable[[bytes], object], what: str, body: bytes) -> None:
    """The error names the expected kind and has the status 200."""
    with pytest.raises(BadAnswer, match=f"{what} that does not decode") as caught:
        decode(body)
    assert caught.value.status == 200


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "it is not JSON"),
        (b'{"metadata":{"name":"\xff"}}', "it is not UTF-8"),
        (b'{"metadata":{"name":7}}', "a field is missing or has another type at metadata.name"),
        (b"[]", "a field is missing or has another type"),
        (b'{"x":' + b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_decode_error_has_words_of_its_own(body: bytes, why: str) -> None:
    """The error says what is wrong with the body, without the decoder's own words."""
    with pytest.raises(BadAnswer, match=rf"does not decode \({re.escape(why)}\)$"):
        decode_slice(body)


def test_write_answer_without_resource_version_is_refused() -> None:
    """An answer without a resourceVersion is refused, since the next write needs it."""
    with pytest.raises(BadAnswer, match="an object without a resourceVersion") as caught:
        decode_identity(b'{"metadata":{"name":"a","uid":"u"}}')
    assert caught.value.status == 200


def test_repr_and_errors_of_a_secret_show_no_data() -> None:
    """Neither the ``repr`` of a Secret nor the error of one that does not decode shows its data."""
    found = decode_secret(b'{"metadata":{"name":"a","resourceVersion":"7"},"data":{"token":"aHVudGVyMg=="}}')
    assert (found.version, found.data) == ("7", {"token": "aHVudGVyMg=="})
    assert repr(found) == "SecretData(7)"
    assert decode_secret(b'{"metadata":{"name":"a","resourceVersion":"8"}}').data == {}
    with pytest.raises(BadAnswer) as caught:
        decode_secret(b'{"metadata":{"name":"a"},"data":{"token":["aHVudGVyMg=="]}}')
    assert "aHVudGVyMg" not in repr(caught.value)
    assert caught.value.__suppress_context__
