"""Options that several commands share, and the types of their values.

Nothing heavy is imported here: a value's own module is imported when a value is converted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from hub.app.hub import Options

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAMESPACE: Final = "default"
DEFAULT_OWNER: Final = "default"
VARIABLE: Final = "ENDPOINTSLICE_HUB_"
"""Prefix of the environment variables that give defaults to options. The chart sets them in the hub's Pods, so that
commands work there without options."""


@dataclass(slots=True)
class Settings:
    """Settings that all commands share.

    Attributes:
        verbose: how often ``-v`` was given.
    """

    verbose: int = 0


# --- types of values: functions that click calls with the text --------------------------------------


def duration(text: str) -> float:
    """Parse a duration such as ``300ms`` or ``1h30m``; returns seconds."""
    return float(_checked("duration", text))


def boolean(text: str | bool) -> bool:
    """Parse ``true`` or ``false``, or another spelling that click accepts."""
    try:
        return click.BOOL.convert(text, None, None)
    except click.BadParameter:
        raise click.BadParameter(f"must be true or false, not {text!r}") from None


def namespace(text: str) -> str:
    """Parse the name of a namespace."""
    return str(_checked("label", text))


def resource_name(text: str) -> str:
    """Parse the name of an object."""
    return str(_checked("label", text))


def service(text: str) -> str:
    """Parse ``namespace/name``."""
    return str(_checked("object_name", text))


def cluster_name(text: str) -> str:
    """Parse the name of a remote cluster; ``local``, the hub cluster, is refused."""
    from hub.model import LOCAL

    name = str(_checked("label", text))
    if name == LOCAL:
        raise click.BadParameter(f"{name!r} is built in: the hub cluster itself")
    return name


def provider_name(text: str) -> str:
    """Parse the name of a provider."""
    return str(_checked("provider_name", text))


def cidr(text: str) -> Any:
    """Parse a network in CIDR notation."""
    return _checked("cidr", text)


def owner(text: str) -> str:
    """Parse the owner of a hub."""
    return str(_checked("owner", text))


def previous_owner(text: str) -> str:
    """Parse the owner of existing slices: any label value, also one that cannot be part of a Lease's name."""
    return str(_checked("previous_owner", text))


def approvable(text: str) -> str:
    """Parse what can be approved: ``namespace/name``, ``cluster/NAME`` or ``registry``."""
    return text if text == "registry" else service(text)


def withheld_hash(text: str) -> str:
    """Parse the hash that the hub shows next to a withheld removal."""
    if not 8 <= len(text) <= 64 or not set(text) <= set("0123456789abcdef"):
        raise click.BadParameter(f"{text!r} is not a hash as 'hub plan' and 'hub status' show it")
    return text


def _checked(function: str, text: str) -> Any:
    """Convert a value by the registry's rules; an error has the registry's wording."""
    from hub.registry import values

    try:
        return getattr(values, function)(text)
    except values.BadValue as bad:
        raise click.BadParameter(f"{bad.message} ({bad.hint})" if bad.hint else bad.message) from None


def program(text: str) -> str:
    """Parse a program: an absolute path or a bare name. A relative path would depend on the working directory."""
    if not text or ("/" in text and not text.startswith("/")):
        raise click.BadParameter(f"{text!r} is neither an absolute path nor a bare program name")
    return text


@dataclass(frozen=True, slots=True)
class BindAddress:
    """An address to listen on; ``host`` None = all addresses."""

    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def bind_address(text: str) -> BindAddress | None:
    """Parse ``HOST:PORT``, ``:PORT`` for all addresses, or ``0`` for off; None = off."""
    if text == "0":
        return None
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and not bracketed):
        raise click.BadParameter(f"{text!r} is not HOST:PORT (such as 127.0.0.1:8081 or [::1]:8081; 0 = off)")
    return BindAddress(host or None, int(port))


# --- options -----------------------------------------------------------------------------------------


def shared_option(flag: str, *more: str, **settings: Any) -> Callable[[F], F]:
    """An option whose default is the environment variable named after its flag; several values have spaces between."""
    variable = VARIABLE + flag.removeprefix("--").replace("-", "_").upper()
    return click.option(flag, *more, envvar=variable, show_envvar=True, **settings)


def is_from_environment(name: str) -> bool:
    """Whether the value of an option of the present command comes from its environment variable."""
    return _source(name) is click.core.ParameterSource.ENVIRONMENT


def is_given(name: str) -> bool:
    """Whether an option of the present command was given on the command line."""
    return _source(name) is click.core.ParameterSource.COMMANDLINE


def is_default(name: str) -> bool:
    """Whether an option of the present command was not given, so that its default applies."""
    return _source(name) is click.core.ParameterSource.DEFAULT


def _source(name: str) -> click.core.ParameterSource | None:
    """Where the value of an option comes from; None outside of a command."""
    context = click.get_current_context(silent=True)
    return context.get_parameter_source(name) if context is not None else None


def _count_verbose(ctx: click.Context, _: click.Parameter, value: int) -> int:
    ctx.ensure_object(Settings).verbose += value
    return value


def verbose(function: F) -> F:
    """Add the option ``-v``."""
    return click.option(
        "-v",
        "--verbose",
        count=True,
        expose_value=False,
        is_eager=True,
        callback=_count_verbose,
        help="Log more on stderr; show the traceback of a defect.",
    )(function)


def output(*choices: str) -> Callable[[F], F]:
    """Make a decorator that adds the option ``-o`` with these choices; the first one is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], show_default=True, help="Output format."
    )


def registry(*, required: bool = True) -> Callable[[F], F]:
    """Make a decorator that adds the option ``--registry``."""
    text = "The registry: clusters.yaml."
    return shared_option("--registry", metavar="FILE", required=required, type=click.Path(), help=text)


owner_option = shared_option(
    "--owner",
    metavar="OWNER",
    type=owner,
    default=DEFAULT_OWNER,
    show_default=True,
    help="The owner of the hub's registry.",
)

kubeconfig = click.option(
    "--kubeconfig",
    metavar="FILE",
    type=click.Path(),
    help="Access to the hub cluster. [default: in-cluster, then $KUBECONFIG, then ~/.kube/config]",
)
lease_namespace = shared_option(
    "--lease-namespace",
    "--leader-elect-resource-namespace",
    "lease_namespace",
    metavar="NAMESPACE",
    type=namespace,
    help="The hub's own namespace, which holds its Lease. [default: the Pod's, then default]",
)

secrets_namespace = shared_option(
    "--secrets-namespace",
    metavar="NAMESPACE",
    type=namespace,
    help="Namespace from which the registry's Secrets are read. [default: the hub's namespace]",
)


target_namespace = shared_option(
    "--target-namespace",
    metavar="NAMESPACE",
    type=namespace,
    multiple=True,
    help="Handle only this namespace of the hub cluster, with a watch of its own. May be repeated. "
    "[default: all namespaces]",
)


def hub_access(function: F) -> F:
    """Add the options for reaching clusters and for what a registry may make the hub run or contact."""
    options = (
        kubeconfig,
        lease_namespace,
        target_namespace,
        secrets_namespace,
        shared_option(
            "--credentials-dir",
            metavar="FOLDER",
            type=click.Path(exists=True, file_okay=False),
            help="Folder for {file: …} credentials. Kubeconfigs, the files they name, and inventories must be "
            "in it or in the registry's folder. [default: the registry's folder]",
        ),
        shared_option(
            "--allow-exec",
            metavar="PROGRAM",
            type=program,
            multiple=True,
            help="A program that kubeconfigs and inventories may run. May be repeated.",
        ),
        shared_option(
            "--allow-api-host",
            metavar="HOST",
            multiple=True,
            help="A host that providers may contact in addition to their default. May be repeated.",
        ),
        click.option(
            "--proxy-from-environment",
            is_flag=True,
            help="Contact remote clusters and providers through $HTTPS_PROXY, except hosts in $NO_PROXY. The proxy-url "
            "of a kubeconfig needs no flag.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Given:
    """The values of the options of :func:`hub_access`."""

    kubeconfig: str | None = None
    lease_namespace: str | None = None
    secrets_namespace: str | None = None
    credentials_dir: str | None = None
    allow_exec: tuple[str, ...] = field(default=())
    allow_api_host: tuple[str, ...] = field(default=())
    target_namespace: tuple[str, ...] = field(default=())
    proxy_from_environment: bool = False

    def options(self, registry: str, **more: Any) -> Options:
        """Build the hub's options; ``more`` sets further fields.

        Raises:
            UsageError: the environment has no usable HTTPS_PROXY, and must have one.
        """
        from hub.app.hub import Options
        from hub.kube.proxy import proxies_of

        namespace = self.lease_namespace or own_namespace()
        return Options(
            registry,
            kubeconfig=self.kubeconfig,
            namespace=namespace,
            secrets_namespace=self.secrets_namespace or namespace,
            credentials_dir=str(Path(self.credentials_dir).absolute()) if self.credentials_dir else None,
            allow_exec=frozenset(self.allow_exec),
            allow_api_hosts=frozenset(self.allow_api_host),
            target_namespaces=tuple(sorted(set(self.target_namespace))),
            proxies=proxies_of(os.environ) if self.proxy_from_environment else None,
            **more,
        )


def own_namespace() -> str:
    """The namespace of the Pod this process runs in; ``default`` outside a Pod."""
    from hub.kube.hub_access import SERVICE_ACCOUNT

    try:
        return (SERVICE_ACCOUNT / "namespace").read_text("utf-8").strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE
