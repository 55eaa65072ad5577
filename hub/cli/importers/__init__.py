"""Turns the configuration of other tools into clusters.yaml: ``hub import`` prints it, ``--from-env`` runs it.

Each importer is a pure function from variables or Services to a commented document. The registry's own loader reads
that text like any other clusters.yaml.
"""
