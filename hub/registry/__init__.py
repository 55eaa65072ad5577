"""The registry clusters.yaml: models, strict loading with line numbers, hot reload."""
