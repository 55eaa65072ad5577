"""A stateful fake of the Brightbox API, for tests and trials; the provider does not import it.

``python -m hub_provider_brightbox.testing`` runs it on loopback and prints the requests that it served.
"""

from hub_provider_brightbox.testing.account import CLIENT, SECRET, FakeAccount, Problem
from hub_provider_brightbox.testing.fake import BrightboxFake, Served

__all__ = ["CLIENT", "SECRET", "BrightboxFake", "FakeAccount", "Problem", "Served"]
