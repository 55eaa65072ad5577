"""Hosts that an API server may not have; kubeconfigs with such hosts are in test_kubeconfig_hostile.py."""

from __future__ import annotations

import pytest

from hub.kube.hosts import address_refusal


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "8.8.8.8", "2001:db8::1", "64:ff9b::a00:1"])
def test_ordinary_addresses_are_not_refused(address: str) -> None:
    """Private, public and loopback addresses may be API servers."""
    assert address_refusal(address) is None


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "::ffff:169.254.1.1", "64:ff9b::a9fe:a9fe", "ff02::1", "0.0.0.0"]
)
def test_address_refusal_names_a_reason(address: str) -> None:
    """Forbidden addresses are refused in every spelling, with a reason."""
    assert address_refusal(address)
