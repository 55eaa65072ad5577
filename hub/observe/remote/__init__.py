"""Remote clusters: their connections, Nodes, sources, and the ports of their Services."""
