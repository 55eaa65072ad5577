"""Carries out the decisions of :mod:`hub.controller`: writes to clouds, Nodes and remote Services."""
