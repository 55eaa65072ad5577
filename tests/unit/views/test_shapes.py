"""Names and objects in dcontroller's form and in the hub's own."""

from __future__ import annotations

import json

import pytest

from hub.model import Conditions, Endpoint, Port, Service, ServicePort, Slice
from hub.views.join import views_of
from hub.views.names import digest
from hub.views.shapes import Shape, shaped

SERVICE = Service(
    "testnamespace",
    "testsvc",
    ports=(ServicePort(80, "http", target_port=80), ServicePort(8843, "https", target_port=8843)),
)
SLICE = Slice(
    "testnamespace",
    "testsvc-1",
    "IPv4",
    (Endpoint(("10.244.1.69",)), Endpoint(("10.244.1.90",), node_name="n1", zone="a")),
    (Port("http", 80), Port("https", 8843)),
)


def objects(shape: Shape, cluster: str = "local") -> dict[str, dict[str, object]]:
    """The specs of the encoded objects, by name."""
    found = shaped(views_of(cluster, SERVICE, [SLICE]), shape)
    decoded = [json.loads(body) for body in found.values()]
    assert [object_["metadata"]["name"] for object_ in decoded] == [name.name for name in found]
    return {object_["metadata"]["name"]: object_["spec"] for object_ in decoded}


@pytest.mark.parametrize(
    ("address", "port", "name"),
    [
        ("10.244.1.69", 80, "testsvc-b9p5tj"),
        ("10.244.1.69", 8843, "testsvc-8x1zl2"),
        ("10.244.1.90", 80, "testsvc-6kq57l"),
    ],
)
def test_names_are_dcontrollers(address: str, port: int, name: str) -> None:
    """The names are those that the real dcontroller gave these objects."""
    assert objects(Shape(compat=True))[name] == {
        "serviceName": "testsvc",
        "type": "ClusterIP",
        "port": port,
        "targetPort": port,
        "protocol": "TCP",
        "address": address,
    }


def test_gathered_names_are_dcontrollers() -> None:
    """A gathered name has Service, protocol and port; the spec has exactly six keys."""
    found = objects(Shape(gather=True, compat=True))
    assert list(found) == ["testsvc-TCP-80", "testsvc-TCP-8843"]
    assert found["testsvc-TCP-80"] == {
        "serviceName": "testsvc",
        "type": "ClusterIP",
        "port": 80,
        "targetPort": 80,
        "protocol": "TCP",
        "addresses": ["10.244.1.69", "10.244.1.90"],
    }


def test_compatible_objects_are_of_the_hub_cluster() -> None:
    """Other clusters have no compatible objects, since names would collide."""
    assert objects(Shape(compat=True), "eu") == {}
    assert len(objects(Shape(), "eu")) == 4


def test_objects_have_the_compatible_and_additional_keys() -> None:
    """The hub's objects also have cluster, node, zone, resolved port and conditions."""
    [spec] = [
        spec for spec in objects(Shape(), "eu").values() if spec["address"] == "10.244.1.90" and spec["port"] == 80
    ]
    assert spec["cluster"] == "eu"
    assert (spec["nodeName"], spec["zone"], spec["resolvedPort"], spec["portName"]) == ("n1", "a", 80, "http")
    assert spec["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert spec["stale"] is False


def test_whole_object() -> None:
    """Without a port's name, a resolved port, a node and a zone, the object lacks these keys."""
    service = Service("edge", "web", ports=(ServicePort(80),))
    endpoint = Endpoint(("10.0.0.1",), Conditions(ready=True, serving=False, terminating=True))
    views = views_of("eu", service, [Slice("edge", "web-1", "IPv4", (endpoint,))], stale=True)
    [(name, body)] = shaped(views, Shape()).items()
    assert (name.cluster, name.namespace, name.name) == ("eu", "edge", "web-0lcu11qypv")
    assert json.loads(body) == {
        "apiVersion": "endpointslice-hub/v1",
        "kind": "EndpointView",
        "metadata": {"name": "web-0lcu11qypv", "namespace": "edge"},
        "spec": {
            "serviceName": "web",
            "type": "ClusterIP",
            "port": 80,
            "targetPort": 80,
            "protocol": "TCP",
            "address": "10.0.0.1",
            "cluster": "eu",
            "stale": True,
            "conditions": {"ready": True, "serving": False, "terminating": True},
        },
    }


def test_gathered_object_has_no_fields_of_single_endpoints() -> None:
    """A gathered object has all addresses of a port, and neither conditions nor nodes."""
    spec = objects(Shape(gather=True), "eu")["testsvc-TCP-80"]
    assert spec == {
        "serviceName": "testsvc",
        "type": "ClusterIP",
        "port": 80,
        "targetPort": 80,
        "protocol": "TCP",
        "addresses": ["10.244.1.69", "10.244.1.90"],
        "cluster": "eu",
        "stale": False,
        "portName": "http",
        "resolvedPort": 80,
    }


def test_a_digest_has_25_digits() -> None:
    """A digest is padded with zeros to 25 digits."""
    assert {len(digest(number)) for number in range(2000)} == {25}
    assert any(digest(number).startswith("0") for number in range(2000))
