"""From the configuration of other tools to clusters.yaml: what ``hub import`` prints and ``--from-env`` runs.

Each importer is a function of values: variables or Services in, a commented document out. Nothing here
decides what a key means; the text goes through the registry's own loader like everybody's.
"""
