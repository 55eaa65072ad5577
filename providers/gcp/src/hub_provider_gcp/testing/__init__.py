"""A stateful fake of Google Cloud for tests and trials; the provider does not import it.

``python -m hub_provider_gcp.testing`` runs it on loopback and prints the requests that it served.
"""

from hub_provider_gcp.testing.cloud import Address, Cloud, Operation, Problem, Vm
from hub_provider_gcp.testing.fake import EMAIL, PROJECT, SUBJECT, GcpFake, Served

__all__ = ["EMAIL", "PROJECT", "SUBJECT", "Address", "Cloud", "GcpFake", "Operation", "Problem", "Served", "Vm"]
