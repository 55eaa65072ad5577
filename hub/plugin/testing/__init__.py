"""The public test kit for plugin authors. Ships with the hub, is never imported by a running one."""

from hub.plugin.testing.kubernetes import Collection, SimulatedCluster
from hub.plugin.testing.simulator.answers import Refusal
from hub.plugin.testing.simulator.objects import make_node, make_service, make_slice, set_ready

__all__ = ["Collection", "Refusal", "SimulatedCluster", "make_node", "make_service", "make_slice", "set_ready"]
