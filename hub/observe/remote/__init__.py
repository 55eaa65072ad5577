"""Remote clusters: connections, Nodes, sources and the ports of their Services."""
