"""The options of ``hub run`` for the address of the status page, the API and ``/metrics``, and for access to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from hub.cli.options import bind_address

if TYPE_CHECKING:
    from hub.report.server import Listen

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT: Final = "127.0.0.1:8080"


def listener(function: F) -> F:
    """Add the options; :func:`listen_of` reads their values."""
    options = (
        click.option(
            "--listen",
            metavar="HOST:PORT",
            type=bind_address,
            default=DEFAULT,
            show_default=True,
            help="Where the status page, the API and /metrics answer; 0 = off.",
        ),
        click.option(
            "--tls-cert-file",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Certificate chain of --listen, PEM; read again when it changes. [default: plain HTTP]",
        ),
        click.option(
            "--tls-private-key-file",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Private key of --tls-cert-file, PEM.",
        ),
        click.option(
            "--listen-authenticate",
            is_flag=True,
            help="Answer only requests with a hub cluster token that may 'get' the path (nonResourceURLs).",
        ),
        click.option(
            "--listen-unauthenticated",
            is_flag=True,
            help="Listen beyond loopback without authentication.",
        ),
        click.option(
            "--allowed-host",
            metavar="NAME",
            multiple=True,
            help="A name or address, without a port, that requests may have in their Host header, in addition to the "
            "listener's addresses, localhost and the host's name. May be repeated.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def listen_of(ctx: click.Context, given: dict[str, Any]) -> Listen:
    """Take the listener's options out of ``given``.

    Raises:
        UsageError: the options contradict each other or are unsafe.
    """
    from hub.report.server import Listen

    listen = Listen(
        given.pop("listen"),
        given.pop("tls_cert_file"),
        given.pop("tls_private_key_file"),
        given.pop("listen_authenticate"),
        given.pop("listen_unauthenticated"),
        frozenset(given.pop("allowed_host")),
        by_default=ctx.get_parameter_source("listen") is ParameterSource.DEFAULT,
    )
    listen.check()
    return listen
