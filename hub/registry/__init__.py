"""clusters.yaml: models, strict loading with positions, hot reload."""
