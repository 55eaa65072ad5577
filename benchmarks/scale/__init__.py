"""How the hub fares with a fleet of hundreds of clusters: ``make bench-scale``."""
