"""The stores of several namespaces act as one store, and do not affect each other."""

from __future__ import annotations

import msgspec
import pytest

from hub.model import ObjectKey, Service, Slice, TargetKey
from hub.observe.local.scoped import ServiceStores, SliceStores
from hub.observe.local.stores import ServiceStore, SliceStore
from tests.support import build

EDGE, SHOP, OTHER = (TargetKey(namespace, "payments") for namespace in ("edge", "shop", "other"))
Stores = tuple[SliceStores, SliceStore, SliceStore]


@pytest.fixture
def woken() -> list[TargetKey]:
    """The targets that the stores have reported as changed."""
    return []


@pytest.fixture
def stores(woken: list[TargetKey]) -> Stores:
    """The combined store, and those of edge and shop."""
    edge, shop, elsewhere = (SliceStore(woken.append) for _ in range(3))
    return SliceStores({"edge": edge, "shop": shop}, elsewhere), edge, shop


def published(namespace: str, version: int) -> Slice:
    """A slice as the API server has it."""
    made = build.slice("payments-1", namespace=namespace, resource_version=str(version))
    return msgspec.structs.replace(made, uid=f"uid-{namespace}")


def key(value: Slice) -> ObjectKey:
    """The key of a slice."""
    return ObjectKey(value.namespace, value.name)


def test_picture_is_complete_once_every_namespace_was_listed(stores: Stores) -> None:
    """The number of lists is that of the namespace with the fewest."""
    both, edge, shop = stores
    edge.replace({}, "100")
    edge.replace({}, "101")
    assert both.lists == 0
    shop.replace({}, "99")
    assert both.lists == 1


def test_list_of_one_namespace_does_not_affect_others(stores: Stores, woken: list[TargetKey]) -> None:
    """A list of one namespace does not remove slices of another, nor make their versions old."""
    both, edge, shop = stores
    first, second = published("edge", 90), published("shop", 91)
    edge.replace({key(first): first}, "95")
    shop.replace({}, "200")
    edge.upsert(key(first), msgspec.structs.replace(first, resource_version="150"), "150")
    shop.upsert(key(second), msgspec.structs.replace(second, resource_version="201"), "201")
    assert {slice_.namespace: slice_.resource_version for slice_ in both.values()} == {"edge": "150", "shop": "201"}
    assert sorted(both.targets()) == [EDGE, SHOP]
    assert dict(both.items()).keys() == {key(first), key(second)}
    assert key(first) in both
    assert set(woken) == {EDGE, SHOP}


def test_writes_go_to_the_store_of_their_namespace(stores: Stores) -> None:
    """Writes, deletions and reads go to the store of their namespace."""
    both, edge, shop = stores
    edge.replace({}, "100")
    shop.replace({}, "100")
    value = published("shop", 101)
    with both.writing(key(value)):
        assert shop.defers(key(value), lambda: None)
        assert not edge.defers(key(value), lambda: None)
    both.wrote(value)
    assert both.get(key(value)) is value
    assert list(both.of(SHOP)) == ["payments-1"]
    assert both.of(EDGE) == {}
    again = published("shop", 102)
    both.read(key(value), again, both.reading(key(value)))
    assert both.get(key(value)) == again
    both.deleted(again)
    assert both.get(key(value)) is None


def test_other_namespaces_look_empty(stores: Stores) -> None:
    """Slices of other namespaces are unknown, even if they are written."""
    both, edge, shop = stores
    edge.replace({}, "100")
    shop.replace({}, "100")
    assert both.of(OTHER) == {}
    assert both.get(ObjectKey("other", "payments-1")) is None
    with both.writing(ObjectKey("other", "payments-1")):
        pass
    both.wrote(published("other", 101))
    assert list(both.targets()) == []


def test_services_are_found_in_their_namespace(woken: list[TargetKey]) -> None:
    """A Service is found in its own namespace; a list of another namespace does not affect it."""
    edge, shop = ServiceStore(woken.append), ServiceStore(woken.append)
    both = ServiceStores({"edge": edge, "shop": shop})
    found: Service = build.service(namespace="shop")
    shop.replace({("shop", "payments"): found}, "1")
    assert both.lists == 0
    edge.replace({}, "2")
    assert both.lists == 1
    assert both.get(SHOP) is found
    assert both.get(EDGE) is None
    assert both.get(OTHER) is None
