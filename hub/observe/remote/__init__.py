"""Remote clusters: one supervised unit each, their nodes, and which of those are eligible."""
