"""The output of ``hub endpoints``."""

from __future__ import annotations

from hub.cli.print_views import event_line


def test_a_line_of_the_stream_does_not_steer_the_terminal() -> None:
    """Names from a remote cluster cannot add a line or an escape sequence."""
    spec = {"serviceName": "a\x1b[2J", "type": "ClusterIP", "protocol": "TCP", "port": 80, "targetPort": "web\nAdded"}

    found = event_line({"type": "Added", "object": {"metadata": {"namespace": "edge", "name": "a-1"}, "spec": spec}})

    assert found == "Added     local   edge   a\\x1b[2J   ClusterIP   TCP   80   web Added   -   a-1   -"
