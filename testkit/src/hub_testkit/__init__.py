"""The public test kit for plugin authors. It is a separate distribution, and a hub in production never imports it."""

from hub_testkit.kubernetes import Collection, SimulatedCluster
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.objects import make_node, make_service, make_slice, set_ready

__all__ = ["Collection", "Refusal", "SimulatedCluster", "make_node", "make_service", "make_slice", "set_ready"]
