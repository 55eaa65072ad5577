"""Checks of what ``watch()`` gives."""

from __future__ import annotations

from typing import Any

import pytest

from hub.plugin import Port, Snapshot
from hub.plugin.answers import read_snapshot


@pytest.mark.parametrize("port", [Port("https", 443), Port("", None), Port("https", 443, app_protocol="http2")])
def test_port_of_the_right_types_is_accepted(port: Port) -> None:
    """A port may lack a name and a number."""
    assert read_snapshot(Snapshot((), ports=(port,))).ports == (port,)


@pytest.mark.parametrize(("name", "number"), [(7, 443), ("x" * 2000, None), ("https", "443"), ("https", True)])
def test_port_of_a_wrong_type_is_refused(name: Any, number: Any) -> None:
    """Both the texts and the number of a port must have the right type."""
    with pytest.raises(TypeError, match="ports are not a tuple of Port"):
        read_snapshot(Snapshot((), ports=(Port(name, number),)))
