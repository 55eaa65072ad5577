"""The configurations for nodes and for addresses. Does not import the SDK, so that ``hub check`` stays fast."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, IPvAnyNetwork, model_validator

from hub.plugin.fields import Duration, SecretRef

Family = Literal["IPv4", "IPv6"]

DEFAULT_HOST: Final = "api.ionos.com"
DEFAULT_URL: Final = f"https://{DEFAULT_HOST}/cloudapi/v6"
API_PATH: Final = "/cloudapi/v6"

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def as_uuid(value: object) -> str:
    """Returns a UUID in lower case, "" for anything else. Only the result may become part of a URL."""
    return value.lower() if isinstance(value, str) and _UUID.fullmatch(value) else ""


def _uuid(value: str) -> str:
    found = as_uuid(value)
    if not found:
        raise ValueError("must be a UUID such as 00000000-0000-0000-0000-000000000000")
    return found


def _user(value: str) -> str:
    if not re.fullmatch(r"[^:\x00-\x1f\x7f]+", value):
        raise ValueError("must not contain a colon or a control character")
    return value


def normalise_url(text: str) -> str:
    """Returns the API's address with scheme and path: ``https://api.ionos.com/cloudapi/v6`` for ``api.ionos.com``.

    Raises:
        ValueError: The text is not such an address, or would send the credential unencrypted.
    """
    parts = urlsplit(text if "://" in text else f"https://{text}")
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("has an invalid port") from None
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
        raise ValueError("must be like https://api.ionos.com")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must have no user, query or fragment")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("must be https: every request carries the credential")
    path = parts.path.rstrip("/")
    if not re.fullmatch(r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*", path):
        raise ValueError("has an invalid path")
    place = f"[{host}]" if ":" in host else host
    if port not in (None, 443 if parts.scheme == "https" else 80):
        place = f"{place}:{port}"
    return f"{parts.scheme}://{place}{path or API_PATH}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Uuid = Annotated[str, AfterValidator(_uuid)]
Lan = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]


class AccountConfig(BaseModel):
    """``allocations.clouds[].config``: data centers and the credential for the API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    datacenters: Annotated[tuple[Uuid, ...], BeforeValidator(_as_list)] = Field(
        min_length=1,
        max_length=50,
        description="UUIDs of the data centers the cluster's servers are in; one or several.",
    )
    token: SecretRef | None = Field(default=None, description="An API token; read again when it changes and on a 401.")
    username: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_user)] | None = Field(
        default=None, description="With password instead of token; refused for accounts with two-factor login."
    )
    password: SecretRef | None = Field(default=None, description="The password of username.")
    contract_number: int | None = Field(
        default=None, alias="contractNumber", ge=1, strict=True, description="For users of several contracts."
    )
    api_url: Annotated[str, AfterValidator(normalise_url)] = Field(
        default=DEFAULT_URL,
        alias="apiUrl",
        max_length=512,
        description="Another API address; its host must be named by --allow-api-host.",
    )
    ca_file: str | None = Field(
        default=None,
        alias="caFile",
        min_length=1,
        description="PEM file with the certificate authority of apiUrl, instead of the public ones.",
    )

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.token is None) == (self.username is None or self.password is None):
            raise ValueError("must have token, or username and password")
        if self.token is not None and (self.username is not None or self.password is not None):
            raise ValueError("must have token, or username and password, not both")
        if len(set(self.datacenters)) != len(self.datacenters):
            raise ValueError("names a data center twice")
        return self

    @property
    def api_host(self) -> str:
        """The API's host, with the port if it is not the scheme's default."""
        return urlsplit(self.api_url).netloc


class Lans(BaseModel):
    """The LANs of load balancers whose Services name none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listener: Lan = Field(description="The LAN that connections come from; public for a public address.")
    target: Lan = Field(description="The LAN on which load balancers reach the nodes.")


class ControllerConfig(AccountConfig):
    """``cloud.provider.config``: as for addresses, and what the cloud controller needs."""

    lans: Lans | None = Field(default=None, description="The LANs of load balancers; annotations can name others.")
    private: bool = Field(default=False, description="State no addresses on public LANs for Nodes.")


class IonosConfig(AccountConfig):
    """Where a cluster's nodes are looked up: data centers, LANs and the credential for the API."""

    lan: Lan | None = Field(default=None, description="The LAN whose addresses are published, by its number.")
    lans: tuple[Lan, ...] = Field(
        default=(), max_length=20, description="Several LANs instead: per family the first one with an address wins."
    )
    refresh: Annotated[Duration, Field(ge=1.0, le=3600.0)] = Field(
        default=30.0, description="Time between two lists, give or take 10 %; longer while the rate limit runs low."
    )
    families: Annotated[tuple[Family, ...], Field(min_length=1)] = Field(
        default=("IPv4", "IPv6"), description="IP families to take."
    )
    cidrs: tuple[IPvAnyNetwork, ...] = Field(
        default=(), description="Only addresses inside these networks are published; default: all."
    )
    k8s_cluster_id: Uuid | None = Field(
        default=None,
        alias="k8sClusterId",
        description="A managed Kubernetes cluster, searched for nodes that match no server of the data centers.",
    )

    @model_validator(mode="after")
    def _check_lans(self) -> Self:
        if (self.lan is None) == (not self.lans):
            raise ValueError("must have exactly one of lan and lans")
        return self

    @property
    def wanted_lans(self) -> tuple[int, ...]:
        """The LANs, in order of preference."""
        return self.lans or ((self.lan,) if self.lan is not None else ())
