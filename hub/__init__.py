"""EndpointSlice Hub: keeps selector-less Services of one cluster pointing at the nodes of many."""

__version__ = "0.1.0"
