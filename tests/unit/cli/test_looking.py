"""``hub endpoints``: what it prints."""

from __future__ import annotations

from hub.cli.looking import event_line


def test_a_line_of_the_stream_does_not_steer_the_terminal() -> None:
    """A remote cluster may call its Services and ports as it likes: no second line, no escape sequence."""
    spec = {"serviceName": "a\x1b[2J", "type": "ClusterIP", "protocol": "TCP", "port": 80, "targetPort": "web\nAdded"}

    found = event_line({"type": "Added", "object": {"metadata": {"namespace": "edge", "name": "a-1"}, "spec": spec}})

    assert found == "Added     local   edge   a\\x1b[2J   ClusterIP   TCP   80   web Added   -   a-1   -"
