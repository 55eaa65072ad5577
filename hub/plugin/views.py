"""The hooks of a consumer of endpoint views, which is an entry point of group ``hub.views``.

The hub calls them in the consumer's own thread, for the views that the ``views`` block of clusters.yaml selects.
docs/plugins says when, how often and in which order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub.model import EndpointView
from hub.plugin.spec import hookspec

VIEWS_ENTRY_POINT_GROUP = "hub.views"
"""Group of the consumers; ``views.hooks`` of clusters.yaml lists the names of their entry points."""


@hookspec
def hub_endpoint_upserted(view: EndpointView) -> None:
    """A view is new, or differs from its last state. May block.

    Calls for one view are in order. The hub repeats a call with backoff until it returns without an exception. When a
    replica starts to write, it calls this for every view.
    """


@hookspec
def hub_endpoint_deleted(view: EndpointView) -> None:
    """A view was deleted; ``view`` is the last state that the consumer got. Repeated like an upsert."""


@hookspec
def hub_endpoints_listed(cluster: str, views: Sequence[EndpointView]) -> None:
    """``views`` are all views of a cluster, and all were upserted. Called once for each cluster after each start.

    The consumer removes all other views of this cluster, which it may have kept from an earlier run.
    """
