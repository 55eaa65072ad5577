"""Who plays: the clusters and Services of the demo, and the clusters.yaml that describes them.

The registry is written from the same values that the demo checks the hub against, and with comments, since
it is there to be read.
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
        prefix: of node names, and name of the data center.
        network: its addresses start with it; data, never contacted.
        grace: seconds a node may be not Ready before it leaves.
    """

    name: str
    prefix: str
    network: str
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class Service:
    """A Service of the hub cluster.

    Attributes:
        sources: names of clusters.
        pool: only nodes with this label; "" = all.
        failover: publish the first source only.
    """

    name: str
    port: int
    sources: tuple[str, ...]
    pool: str = ""
    failover: bool = False

    @property
    def published_sources(self) -> tuple[str, ...]:
        """The clusters whose nodes stand behind it while none of them is lost for good."""
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
# The registry of the demo, as written for this run. What is special for a demo is said so.
version: 1
owner: demo

defaults:
  nodes:
    cordoned: not-ready           # a cordoned node stays published, but takes no new connections

clusters:
"""


def registry(provider: str, config: Callable[[str], str]) -> str:
    """The text of clusters.yaml.

    Args:
        provider: its name.
        config: its configuration for a data center, in YAML.
    """
    clusters = "".join(_cluster(each, provider, config(each.prefix)) for each in CLUSTERS)
    return f"{_HEAD}{clusters}\nservices:\n{''.join(_service(each) for each in SERVICES)}"


def _cluster(cluster: Cluster, provider: str, config: str) -> str:
    grace = (
        f"{cluster.grace:g}s}}            # not Ready for less than this: nothing happens (default: 30s)"
        if cluster.grace
        else "0s}            # a demo is impatient (default: 30s)"
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
        lines.append("    strategy: failover            # the first source; the second where that has nothing ready")
    if service.pool:
        lines.append(f'    nodes: {{selector: "pool={service.pool}"}}')
    return "\n".join(lines) + "\n"


def _sources(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"{{cluster: {name}}}" for name in names) + "]"
