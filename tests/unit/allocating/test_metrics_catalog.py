"""The catalog of metric families of allocations."""

from __future__ import annotations

from hub.allocating.metrics_catalog import FAMILIES, ORIGINAL, PREFIX

LATENCY = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PASS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OF_IP_ADDRESS_CONTROLLER: dict[str, tuple[str, set[str], tuple[float, ...]]] = {
    "crd_status": ("gauge", {"crd_name"}, ()),
    "reserved_ips_total": ("gauge", {"crd_name"}, ()),
    "attached_ips_total": ("gauge", {"crd_name"}, ()),
    "unattached_ips_total": ("gauge", {"crd_name"}, ()),
    "ip_attached": ("gauge", {"crd_name", "ip", "node"}, ()),
    "node_ip_ready": ("gauge", {"node", "crd_name"}, ()),
    "node_cordoned": ("gauge", {"node"}, ()),
    "controller_is_leader": ("gauge", {"pod_name"}, ()),
    "controller_healthy": ("gauge", {"pod_name"}, ()),
    "controller_ready": ("gauge", {"pod_name"}, ()),
    "reconcile_total": ("counter", {"crd_name", "status"}, ()),
    "ip_attach_total": ("counter", {"crd_name", "status"}, ()),
    "ip_detach_total": ("counter", {"crd_name", "status"}, ()),
    "gcp_api_errors_total": ("counter", {"operation", "error_type"}, ()),
    "reconcile_duration_seconds": ("histogram", {"crd_name"}, PASS),
    "gcp_api_duration_seconds": ("histogram", {"operation"}, LATENCY),
    "controller_info": ("info", {"version", "pod_name"}, ()),
}
"""Family of ip-address-controller 1.1.0 without its prefix -> type, labels, buckets."""


def test_families_of_ip_address_controller_differ_by_the_cluster_only() -> None:
    """All 17 have the same name, type, labels and buckets, and the label `cluster` in addition."""
    found = {
        family.name.removeprefix(PREFIX): (family.kind, {*family.labels} - {"cluster"}, family.buckets)
        for family in ORIGINAL
    }
    assert found == OF_IP_ADDRESS_CONTROLLER
    assert all("cluster" in family.labels for family in ORIGINAL)


def test_names_of_families_are_unique() -> None:
    """No name is there twice, and every family has the prefix and a help text."""
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.name.startswith(PREFIX) and family.help for family in FAMILIES)


def test_only_histograms_have_buckets() -> None:
    """Buckets grow, and no other type has any."""
    for family in FAMILIES:
        assert bool(family.buckets) is (family.kind == "histogram"), family.name
        assert list(family.buckets) == sorted(set(family.buckets)), family.name
