"""A stateful fake of the IONOS API for reserved addresses and load balancers, for tests and trials.

The provider does not import it. ``python -m hub_provider_ionos.testing`` runs it on loopback and prints the requests
that it served.
"""

from hub_provider_ionos.testing.cloud import DATACENTER, PRIVATE, PUBLIC, Cloud, Problem
from hub_provider_ionos.testing.fake import TOKEN, IonosFake, Served
from hub_provider_ionos.testing.network import FakeNetwork

__all__ = ["DATACENTER", "PRIVATE", "PUBLIC", "TOKEN", "Cloud", "FakeNetwork", "IonosFake", "Problem", "Served"]
