"""The steps of ``hub cluster remove`` in a remote cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hub.onboarding.manifests import ACCOUNT, SELECTOR, Access, Manifest, manifests, place
from hub.onboarding.remote import Step, withdraw

ACCESS = Access("eu")
NAMESPACE = Step("Namespace endpointslice-hub", "kept")


class Cluster:
    """An admin client of a cluster that has the objects of ``ACCESS`` and these other ones, as (kind, name)."""

    def __init__(self, *others: tuple[str, str]) -> None:
        self.granted = {place(manifest): manifest for manifest in manifests(ACCESS)}
        self._others = others

    async def find(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """Read an object."""
        return self.granted.get(f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}")

    async def list_labelled(self, kind: str, selector: str) -> list[Manifest]:
        """List the objects of a kind; the selector is the one that they all match."""
        assert selector == SELECTOR
        return [manifest for manifest in self.granted.values() if manifest["kind"] == kind]

    async def some_names(self, kind: str, namespace: str) -> list[str]:
        """List the names of the objects of a kind that the namespace of the account has."""
        assert namespace == ACCESS.namespace
        own = ["default", ACCOUNT] if kind == "ServiceAccount" else []
        return own + [name for kind_, name in self._others if kind_ == kind]

    async def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """Delete an object."""
        return self.granted.pop(f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}", None) is not None


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ((), []),
        ((("ServiceAccount", "other"),), [NAMESPACE]),
        ((("Pod", "debug"),), [NAMESPACE]),
    ],
)
async def test_a_namespace_that_others_use_is_kept(others: tuple[Any, ...], kept: list[Step]) -> None:
    """The namespace stays if it has another ServiceAccount or a Pod, and all other objects are deleted."""
    cluster, steps = Cluster(*others), list[Step]()

    await withdraw(cast("Any", cluster), ACCESS, steps, apply=True)

    assert [step for step in steps if step.done != "deleted"] == kept
    assert list(cluster.granted) == [step.what for step in kept]
