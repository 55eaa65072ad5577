"""What the hub knows of the world: remote clusters, providers' answers, health checks, the hub cluster."""
