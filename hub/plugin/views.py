"""The hooks that a consumer of endpoint views implements: an entry point of group ``hub.views``.

They are called in the consumer's own thread, for the views that ``views:`` of clusters.yaml makes. docs/plugins says
when, how often and in which order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub.model import EndpointView
from hub.plugin.spec import hookspec

VIEWS_ENTRY_POINT_GROUP = "hub.views"
"""Consumers of endpoint views; the entry point's name is the one in ``views.hooks`` of clusters.yaml."""


@hookspec
def hub_endpoint_upserted(view: EndpointView) -> None:
    """A view is new, or differs from the one before. In order for each view, in the consumer's own thread; may block.

    The hub calls it again with backoff until it returns, and calls it for every view when a replica starts to write.
    """


@hookspec
def hub_endpoint_deleted(view: EndpointView) -> None:
    """A view that this consumer knows is gone; ``view`` is its last state. Called like an upsert."""


@hookspec
def hub_endpoints_listed(cluster: str, views: Sequence[EndpointView]) -> None:
    """Called once after each start, for each cluster: ``views`` are all of its views, and all were upserted.

    The consumer removes anything else that it keeps of this cluster from an earlier run.
    """
