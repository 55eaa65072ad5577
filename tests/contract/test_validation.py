"""Validation of EndpointSlices: what an API server refuses, and what it accepts although it is harmful.

Because of the second part, the hub itself must reject ClusterIPs, metadata addresses and invalid ports.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.client import EVENTS, LEASES, SECRETS, SERVICES, SLICES, Client, Json, endpoint_slice

LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
SUBDOMAIN = "a lowercase RFC 1123 subdomain must consist of "
LABEL = "a lowercase RFC 1123 label must consist of "
NAME_PART = "name part must consist of "
FIRST = "endpoints[0].addresses[0]"
LIST = "endpoints[0].addresses"


def with_endpoint(**fields: Any) -> Json:
    """A slice with one endpoint that has these fields."""
    return endpoint_slice("s") | {"endpoints": [{"addresses": ["10.0.0.1"], **fields}]}


def with_ports(*ports: Json) -> Json:
    """A slice with these ports."""
    return endpoint_slice("s", ports=list(ports))


@pytest.mark.parametrize(
    ("family", "address", "causes"),
    [
        ("IPv4", "127.0.0.1", [(FIRST, LOOPBACK)]),
        ("IPv4", "169.254.169.254", [(FIRST, LINK_LOCAL)]),
        ("IPv4", "0.0.0.0", [(FIRST, "may not be unspecified (0.0.0.0)")]),
        ("IPv4", "224.0.0.5", [(FIRST, MULTICAST)]),
        ("IPv4", "nonsense", [(FIRST, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]),
        ("IPv4", "", [(FIRST, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]),
        ("IPv4", "10.0.0", [(FIRST, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]),
        ("IPv4", "10.0.0.256", [(FIRST, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]),
        ("IPv4", "fd00::1", [(LIST, "must be an IPv4 address")]),
        ("IPv4", "::1", [(LIST, "must be an IPv4 address"), (FIRST, LOOPBACK)]),
        ("IPv6", "::1", [(FIRST, LOOPBACK)]),
        ("IPv6", "fe80::1", [(FIRST, LINK_LOCAL)]),
        ("IPv6", "fe80::1%eth0", [(FIRST, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]),
        ("IPv6", "::", [(FIRST, "may not be unspecified (::)")]),
        ("IPv6", "ff02::1", [(FIRST, MULTICAST)]),
        ("IPv6", "::ffff:10.0.0.1", [(FIRST, "must not be an IPv4-mapped IPv6 address")]),
        ("IPv6", "10.0.0.1", [(LIST, "must be an IPv6 address")]),
        ("IPv6", "FD00::1", [(FIRST, 'must be in canonical form ("fd00::1")')]),
        ("IPv6", "fd00:0:0::1", [(FIRST, 'must be in canonical form ("fd00::1")')]),
        ("FQDN", "A_b", [(FIRST, SUBDOMAIN)]),
    ],
)
async def test_an_impossible_address_is_422(
    server: Client, family: str, address: str, causes: list[tuple[str, str]]
) -> None:
    """The causes of the 422 have the endpoint's index, so that the hub can drop that endpoint."""
    answer = await server.post(SLICES, endpoint_slice("s", address, addressType=family), dryRun="All")
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    found = answer.body["details"]["causes"]
    assert [cause["field"] for cause in found] == [field for field, _ in causes]
    for cause, (_, why) in zip(found, causes, strict=True):
        assert cause["reason"] == "FieldValueInvalid"
        assert cause["message"].startswith(f'Invalid value: "{address}": {why}')


async def test_a_422_is_a_status_with_the_causes_in_its_message(server: Client) -> None:
    """A 422 has the whole body of a Status; with several causes the message lists them in brackets."""
    answer = await server.post(SLICES, endpoint_slice("s", "10.0.0.1", "127.0.0.1"), dryRun="All")
    why = f'Invalid value: "127.0.0.1": {LOOPBACK}'
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'EndpointSlice.discovery.k8s.io "s" is invalid: endpoints[1].addresses[0]: {why}',
        "reason": "Invalid",
        "details": {
            "name": "s",
            "group": "discovery.k8s.io",
            "kind": "EndpointSlice",
            "causes": [{"reason": "FieldValueInvalid", "message": why, "field": "endpoints[1].addresses[0]"}],
        },
        "code": 422,
    }
    two = await server.post(SLICES, endpoint_slice("s", "127.0.0.1", "127.0.0.1"), dryRun="All")
    assert two.body["message"] == (
        f'EndpointSlice.discovery.k8s.io "s" is invalid: [endpoints[0].addresses[0]: {why}, '
        f"endpoints[1].addresses[0]: {why}]"
    )


@pytest.mark.parametrize(
    ("family", "address"),
    [
        ("IPv4", "239.1.2.3"),
        ("IPv4", "255.255.255.255"),
        ("IPv4", "10.96.0.1"),
        ("IPv4", "100.100.100.200"),
        ("IPv4", "010.0.0.1"),
        ("IPv6", "fd00:ec2::254"),
        ("IPv6", "64:ff9b::a9fe:a9fe"),
        ("IPv6", "2002:7f00:1::"),
        ("IPv6", "ff05::1"),
        ("FQDN", "metadata.google.internal"),
        ("FQDN", "10.0.0.1"),
    ],
)
async def test_harmful_addresses_are_stored(server: Client, family: str, address: str) -> None:
    """Broadcast addresses, ClusterIPs and embedded metadata addresses are stored unchanged."""
    answer = await server.post(SLICES, endpoint_slice("s", address, addressType=family), dryRun="All")
    assert (answer.status, answer.body["endpoints"][0]["addresses"]) == (201, [address])


@pytest.mark.parametrize(
    ("body", "kind", "field", "message"),
    [
        (endpoint_slice("s", addressType="IPx"), "NotSupported", "addressType", 'Unsupported value: "IPx"'),
        (endpoint_slice("s", addressType=""), "Required", "addressType", "Required value"),
        (with_endpoint(addresses=[]), "Required", LIST, "Required value: must contain at least 1 address"),
        (
            with_endpoint(addresses=[f"10.0.0.{n}" for n in range(101)]),
            "TooMany",
            LIST,
            "Too many: 101: must have at most 100 items",
        ),
        (
            endpoint_slice("s", *["10.0.0.1"] * 1001),
            "TooMany",
            "endpoints",
            "Too many: 1001: must have at most 1000 items",
        ),
        (with_endpoint(hostname="Bad_H"), "Invalid", "endpoints[0].hostname", f'Invalid value: "Bad_H": {LABEL}'),
        (with_endpoint(hostname=""), "Invalid", "endpoints[0].hostname", f'Invalid value: "": {LABEL}'),
        (with_endpoint(nodeName="Bad_N"), "Invalid", "endpoints[0].nodeName", f'Invalid value: "Bad_N": {SUBDOMAIN}'),
        (
            with_endpoint(hints={"forZones": [{"name": f"z{n}"} for n in range(9)]}),
            "TooMany",
            "endpoints[0].hints.forZones",
            "Too many: 9: must have at most 8 items",
        ),
        (
            with_ports({"name": "a", "port": 1}, {"name": "a", "port": 2}),
            "Duplicate",
            "ports[1].name",
            'Duplicate value: "a"',
        ),
        (with_ports({"port": 1}, {"port": 2}), "Duplicate", "ports[1].name", 'Duplicate value: ""'),
        (with_ports({"name": "Bad_n", "port": 1}), "Invalid", "ports[0].name", f'Invalid value: "Bad_n": {LABEL}'),
        (
            with_ports({"name": "x" * 64, "port": 1}),
            "Invalid",
            "ports[0].name",
            f'Invalid value: "{"x" * 64}": must be no more than 63 characters',
        ),
        (
            with_ports({"port": 1, "protocol": "FOO"}),
            "NotSupported",
            "ports[0].protocol",
            'Unsupported value: "FOO": supported values: "SCTP", "TCP", "UDP"',
        ),
        (
            with_ports({"port": 1, "appProtocol": "a b"}),
            "Invalid",
            "ports[0].appProtocol",
            f'Invalid value: "a b": {NAME_PART}',
        ),
        (endpoint_slice("Bad_Name"), "Invalid", "metadata.name", f'Invalid value: "Bad_Name": {SUBDOMAIN}'),
        (
            endpoint_slice("a" * 254),
            "Invalid",
            "metadata.name",
            f'Invalid value: "{"a" * 254}": must be no more than 253 characters',
        ),
        (
            endpoint_slice("s") | {"metadata": {}},
            "Required",
            "metadata.name",
            "Required value: name or generateName is required",
        ),
        (
            endpoint_slice("s") | {"metadata": {"name": "s", "labels": {"a b": "c"}}},
            "Invalid",
            "metadata.labels",
            f'Invalid value: "a b": {NAME_PART}',
        ),
        (
            endpoint_slice("s") | {"metadata": {"name": "s", "labels": {"a": "-c"}}},
            "Invalid",
            "metadata.labels",
            'Invalid value: "-c": a valid label must be ',
        ),
        (
            endpoint_slice("s") | {"metadata": {"name": "s", "labels": {"a": "c" * 64}}},
            "Invalid",
            "metadata.labels",
            f'Invalid value: "{"c" * 64}": must be no more than 63 ',
        ),
        (
            endpoint_slice("s") | {"metadata": {"name": "s", "annotations": {"a b": "c"}}},
            "Invalid",
            "metadata.annotations",
            f'Invalid value: "a b": {NAME_PART}',
        ),
        (
            endpoint_slice("s")
            | {"metadata": {"name": "s", "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "q"}]}},
            "Invalid",
            "metadata.ownerReferences.uid",
            'Invalid value: "": must not be empty',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
async def test_an_invalid_slice_is_422(server: Client, body: Json, kind: str, field: str, message: str) -> None:
    """Each invalid field has its own cause with reason and path."""
    answer = await server.post(SLICES, body, dryRun="All")
    assert answer.status == 422
    [cause] = answer.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == (f"FieldValue{kind}", field)
    assert cause["message"].startswith(message)


@pytest.mark.parametrize(
    "body",
    [
        endpoint_slice("s", *[f"10.1.{n // 250}.{n % 250}" for n in range(1000)]),
        endpoint_slice("s", "10.0.0.1", "10.0.0.1"),
        endpoint_slice("a" * 253),
        with_ports({"port": 0}, {"name": "a", "port": -1}, {"name": "b", "port": 70000}, {"name": "c"}),
        with_ports(*[{"name": f"p{n}", "port": n} for n in range(101)]),
        with_endpoint(zone="", nodeName="n1", targetRef={"kind": "Node", "name": "n1"}, conditions={"ready": None}),
        endpoint_slice("s") | {"bogus": 1},
    ],
    ids=["1000", "twice", "name", "ports", "many-ports", "endpoint", "unknown-field"],
)
async def test_unusual_but_valid_slices_are_accepted(server: Client, body: Json) -> None:
    """Any port number, duplicate addresses and unknown fields are accepted."""
    answer = await server.post(SLICES, body, dryRun="All")
    assert (answer.status, "bogus" in answer.body) == (201, False)


async def test_defaults_and_nulls(server: Client) -> None:
    """Empty lists are returned as null, ports with name and protocol, endpoints with conditions; nulls are removed."""
    empty = (await server.post(SLICES, endpoint_slice("empty", ports=[]))).body
    assert (empty["endpoints"], empty["ports"]) == (None, None)
    absent = (await server.post(SLICES, {"metadata": {"name": "absent"}, "addressType": "IPv4"})).body
    assert (absent["endpoints"], absent["ports"]) == (None, None)
    body = with_endpoint(conditions={"ready": None, "serving": True}, hostname=None) | {"ports": [{"port": 80}]}
    full = (await server.post(SLICES, body)).body
    assert full["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {"serving": True}}]
    assert full["ports"] == [{"name": "", "protocol": "TCP", "port": 80}]


async def test_the_address_type_is_immutable(server: Client) -> None:
    """The address type of a slice cannot change."""
    body = (await server.post(SLICES, endpoint_slice("a"))).body
    answer = await server.put(f"{SLICES}/a", body | {"addressType": "IPv6"})
    assert answer.body["details"]["causes"] == [
        {"reason": "FieldValueInvalid", "message": 'Invalid value: "IPv6": field is immutable', "field": "addressType"}
    ]


@pytest.mark.parametrize(
    "body", [endpoint_slice("s", endpoints="x"), with_ports({"port": "x"}), with_endpoint(addresses=[1])]
)
async def test_a_wrong_type_is_400(server: Client, body: Json) -> None:
    """A field of the wrong type is a 400."""
    answer = await server.post(SLICES, body)
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert answer.body["message"].startswith(
        'EndpointSlice in version "v1" cannot be handled as a EndpointSlice: json:'
    )


# --- the other kinds -----------------------------------------------------------------------------


async def test_a_lease_keeps_microseconds(server: Client) -> None:
    """Times have exactly six decimals, durations must be positive, and the holder may be empty."""
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    lease = (await server.post(LEASES, {"metadata": {"name": "l"}, "spec": spec})).body
    assert lease["spec"] == spec
    coarse = lease | {"spec": spec | {"renewTime": "2026-01-01T00:00:00Z"}}
    refused = await server.put(f"{LEASES}/l", coarse)
    assert (refused.status, refused.body["message"].partition(":")[0]) == (
        400,
        'Lease in version "v1" cannot be handled as a Lease',
    )
    zero = await server.put(f"{LEASES}/l", lease | {"spec": spec | {"leaseDurationSeconds": 0}})
    assert zero.body["details"]["causes"][0]["message"] == "Invalid value: 0: must be greater than 0"
    released = await server.put(
        f"{LEASES}/l", lease | {"spec": spec | {"holderIdentity": "", "leaseDurationSeconds": 1}}
    )
    assert (released.status, released.body["spec"]["holderIdentity"]) == (200, "")


async def test_an_event_needs_an_action_and_gets_the_old_fields(server: Client) -> None:
    """An events.k8s.io/v1 Event has required fields, and gets the fields of the older API."""
    event = {
        "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/hub",
        "reportingInstance": "i",
        "action": "Sync",
        "reason": "Synced",
        "regarding": {"kind": "Service", "namespace": "default", "name": "web"},
        "type": "Normal",
        "note": "text",
    }
    refused = await server.post(EVENTS, event | {"action": ""})
    assert refused.body["details"] == {
        "name": "e",
        "kind": "Event",
        "causes": [{"reason": "FieldValueRequired", "message": "Required value", "field": "action"}],
    }
    made = (await server.post(EVENTS, event)).body
    assert {key: made[key] for key in made if key.startswith("deprecated")} == {
        "deprecatedSource": {},
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
    }


async def test_secret_string_data_is_encoded(server: Client) -> None:
    """StringData is encoded into data; data that is not base64 is a 400."""
    made = await server.post(SECRETS, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    assert (made.body["data"], made.body["type"], "stringData" in made.body) == ({"k": "dg=="}, "Opaque", False)
    assert (await server.post(SECRETS, {"metadata": {"name": "t"}, "data": {"k": "!!"}})).status == 400


@pytest.mark.parametrize(
    ("given", "families", "policy", "addresses"),
    [
        ({}, ["IPv4"], "SingleStack", 1),
        ({"clusterIP": "None"}, ["IPv4", "IPv6"], "RequireDualStack", 1),
        ({"clusterIP": "None", "selector": {"a": "b"}}, ["IPv4"], "SingleStack", 1),
        ({"ipFamilyPolicy": "PreferDualStack"}, ["IPv4", "IPv6"], "PreferDualStack", 2),
        ({"ipFamilies": ["IPv6"]}, ["IPv6"], "SingleStack", 1),
        (
            {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"},
            ["IPv6", "IPv4"],
            "RequireDualStack",
            2,
        ),
    ],
)
async def test_a_service_gets_families_and_addresses(
    server: Client, given: Json, families: list[str], policy: str, addresses: int
) -> None:
    """A dual-stack cluster assigns IPv4 first; a headless Service without a selector is dual-stack by default."""
    body = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}], **given}}
    spec = (await server.post(SERVICES, body)).body["spec"]
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (families, policy)
    assert len(spec["clusterIPs"]) == addresses
    assert spec["clusterIPs"][0] == spec["clusterIP"]
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert (spec["type"], spec["sessionAffinity"], spec["internalTrafficPolicy"]) == ("ClusterIP", "None", "Cluster")


async def test_a_service_keeps_its_address(server: Client) -> None:
    """An update without the ClusterIP keeps it."""
    made = (await server.post(SERVICES, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})).body
    spec = {"ports": [{"port": 81, "targetPort": 80}]}
    answer = (await server.put(f"{SERVICES}/a", {"metadata": {"name": "a"}, "spec": spec})).body
    assert answer["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    assert answer["spec"]["ports"][0]["port"] == 81


async def test_other_kinds_of_services(server: Client) -> None:
    """NodePorts are allocated; an ExternalName has no address; a Service needs ports and a DNS-1035 name."""
    spec: Json = {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]}
    port = (await server.post(SERVICES, {"metadata": {"name": "np"}, "spec": spec})).body["spec"]["ports"][0]
    assert 30000 <= port["nodePort"] <= 32767
    spec = {"type": "ExternalName", "externalName": "example.com"}
    external = (await server.post(SERVICES, {"metadata": {"name": "en"}, "spec": spec})).body["spec"]
    assert (external["externalName"], "clusterIP" in external, "ipFamilies" in external) == (
        "example.com",
        False,
        False,
    )
    bare = await server.post(SERVICES, {"metadata": {"name": "bare"}, "spec": {}})
    assert bare.body["details"] == {
        "name": "bare",
        "kind": "Service",
        "causes": [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.ports"}],
    }
    named = await server.post(SERVICES, {"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 80}]}})
    assert named.body["details"]["causes"][0]["message"].startswith(
        'Invalid value: "1a": a DNS-1035 label must consist'
    )
