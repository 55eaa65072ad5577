"""A hub that does not run: the state that the report reads, with values that a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hub.decide.view import ViewResult
from hub.model import Slice, SourceView, TargetKey
from hub.observe.local.stores import SliceStore
from hub.registry.spec import ClusterSpec, ProviderRef, Registry, SourceSpec
from tests.support import build
from tests.support.clocks import ManualClock

KEY = TargetKey("edge", "payments")
PROVIDER = ProviderRef("node-addresses")


def registry(*clusters: str, **more: Any) -> Registry:
    """A registry with these clusters and the target ``edge/payments``, whose sources they are."""
    specs = {name: ClusterSpec(name, PROVIDER) for name in clusters or ("eu",)}
    more.setdefault("targets", {KEY: build.target(*specs)})
    return Registry("default", **{"clusters": specs, **more})


class StillHub(SimpleNamespace):
    """A hub that leads and has decided nothing; the attributes are those of :class:`hub.report.hub_state.HubState`."""

    def __init__(self, *slices: Slice, **more: Any) -> None:
        store = SliceStore(lambda *_: None)
        store.replace({(value.namespace, value.name): value for value in slices}, "1")
        super().__init__(
            allocating=None,
            controlling=None,
            board=SimpleNamespace(verdicts=dict, reason=lambda *_: ""),
            clock=ManualClock(),
            elector=SimpleNamespace(identity="hub-0", holder="hub-0"),
            fleet=SimpleNamespace(clusters={}, sources={}, problem=lambda _: None),
            health=SimpleNamespace(stopping=False),
            history=SimpleNamespace(entries=dict, problem=""),
            leading=SimpleNamespace(
                held=frozenset({0}), count=1, shard=lambda _: 0, holder_of=lambda _: "", writes=lambda _: True
            ),
            leads=True,
            local=SimpleNamespace(slices=store, services={KEY: build.service()}, synced=True),
            options=SimpleNamespace(dry_run=False, namespace="endpointslice-hub"),
            own_networks=SimpleNamespace(networks=()),
            problems=(),
            reconciler=SimpleNamespace(
                last=lambda _: None,
                problem=lambda _: "",
                written_at=lambda _: None,
                view=lambda source: ViewResult(SourceView(source.cluster, None, {}), {}),
                withheld=lambda: None,
            ),
            registry=registry(),
            rejected=None,
            trouble="",
            writing=True,
            writes=lambda _: True,
        )
        vars(self).update(more)

    def decided(self, *decisions: Any) -> None:
        """Set the last decisions."""
        self.reconciler.last = {decision.target: decision for decision in decisions}.get

    def unknown(self, **reasons: str) -> None:
        """Make the views of clusters unknown, and count the calls in ``viewed``."""
        self.viewed: list[str] = []

        def view(source: SourceSpec) -> ViewResult:
            self.viewed.append(source.cluster)
            return ViewResult(SourceView(source.cluster, reasons.get(source.cluster), {}), {})

        self.reconciler.view = view
