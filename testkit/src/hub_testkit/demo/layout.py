"""The clusters and Services of the demo, and the clusters.yaml that describes them.

The registry is written from the same values that the demo checks the hub against. It has comments, because users of the
demo read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

NAMESPACE: Final = "edge"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A remote cluster.

    Attributes:
        prefix: The prefix of its node names, and the name of its data center.
        network: The first two bytes of its nodes' addresses, which are never contacted.
        grace: Seconds that a node may be not Ready before its endpoint is removed.
    """

    name: str
    prefix: str
    network: str
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class Service:
    """A Service of the hub cluster.

    Attributes:
        sources: Names of the clusters whose nodes are published.
        pool: Only nodes with this value of the label ``pool`` are published; "" = all.
        failover: Publish only the first source that has ready endpoints.
    """

    name: str
    port: int
    sources: tuple[str, ...]
    pool: str = ""
    failover: bool = False

    @property
    def published_sources(self) -> tuple[str, ...]:
        """The clusters whose nodes are published while every source has ready endpoints."""
        return self.sources[:1] if self.failover else self.sources


EU: Final = Cluster("payments-eu", "eu", "10.7")
US: Final = Cluster("payments-us", "us", "10.8")
AP: Final = Cluster("payments-ap", "ap", "10.9", grace=5.0)

CLUSTERS: Final = (EU, US, AP)
SERVICES: Final = (
    Service("payments", 30443, (EU.name, US.name, AP.name)),
    Service("checkout", 30080, (EU.name, US.name), pool="edge"),
    Service("search", 30090, (EU.name, AP.name)),
    Service("refunds", 30444, (US.name, AP.name), pool="edge", failover=True),
)
POOLS: Final = ("edge", "edge", "edge", "edge", "batch", "batch", "batch")
"""The node pools of each cluster at the start: seven nodes, four of them for ingress."""

_HEAD: Final = """\
# The registry of the demo, written for this run. Comments mark the settings that only a demo needs.
version: 1
owner: demo

defaults:
  nodes:
    cordoned: not-ready           # a cordoned node stays published, but takes no new connections

clusters:
"""


def registry(provider: str, config: Callable[[str], str]) -> str:
    """Returns the text of clusters.yaml.

    Args:
        provider: The provider's name.
        config: Returns the provider's configuration for a data center, in YAML.
    """
    clusters = "".join(_cluster(cluster, provider, config(cluster.prefix)) for cluster in CLUSTERS)
    return f"{_HEAD}{clusters}\nservices:\n{''.join(_service(service) for service in SERVICES)}"


def _cluster(cluster: Cluster, provider: str, config: str) -> str:
    grace = (
        f"{cluster.grace:g}s}}            # a node that is not Ready for less stays published (default: 30s)"
        if cluster.grace
        else "0s}            # short, so that the demo need not wait (default: 30s)"
    )
    return f"""\
  - name: {cluster.name}
    kubeconfig: {{path: kubeconfigs/{cluster.name}}}
    labels: {{region: {cluster.prefix}}}
    allowedCIDRs: [{cluster.network}.0.0/16]
    provider:                     # asks a simulated cloud for the nodes' addresses
      name: {provider}
      config: {config}
    nodes: {{notReadyGrace: {grace}
"""


def _service(service: Service) -> str:
    lines = [f"  - name: {service.name}", f"    namespace: {NAMESPACE}", f"    sources: {_sources(service.sources)}"]
    if service.failover:
        lines.append("    strategy: failover            # the first source; the second if the first has nothing ready")
    if service.pool:
        lines.append(f'    nodes: {{selector: "pool={service.pool}"}}')
    return "\n".join(lines) + "\n"


def _sources(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"{{cluster: {name}}}" for name in names) + "]"
