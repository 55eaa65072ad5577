"""``allocations.clouds[].config`` of the provider ``gcp``. Does not import google-auth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from hub.plugin.fields import SecretRef

ENDPOINT: Final = "https://compute.googleapis.com"


def secure_origin(text: str) -> str:
    """Returns scheme, host and port of a URL without path, in lower case.

    Raises:
        ValueError: the text is not such a URL, or is an http URL of another machine.
    """
    found = re.fullmatch(r"(https?)://([a-z0-9.-]{1,253}(?::[0-9]{1,5})?)/?", text.lower())
    if found is None:
        raise ValueError(f"must be like {ENDPOINT}, without a path")
    if found[1] == "http" and not is_loopback(found[2].partition(":")[0]):
        raise ValueError("must be https: requests carry an access token")
    return f"{found[1]}://{found[2]}"


def is_loopback(host: str) -> bool:
    """Whether a host is an address of this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _once(regions: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(regions)) != len(regions):
        raise ValueError("names a region twice")
    return regions


def _kind(value: Any) -> str:
    named = "default" in value if isinstance(value, Mapping) else isinstance(value, DefaultCredentials)
    return "default" if named else "reference"


class DefaultCredentials(BaseModel):
    """The hub's own identity: the file that GOOGLE_APPLICATION_CREDENTIALS names, otherwise the metadata server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Literal[True]


Project = Annotated[str, Field(pattern=r"^([a-z0-9.-]{1,63}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")]
Region = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,30}(-[a-z0-9]{1,30}){1,3}$")]
Credentials = Annotated[
    Annotated[DefaultCredentials, Tag("default")] | Annotated[SecretRef, Tag("reference")], Discriminator(_kind)
]


class GcpConfig(BaseModel):
    """One project of Google Cloud, and the login for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: Project | None = Field(
        default=None,
        description="ID of the project of the addresses and of the virtual machines; default: the credential's.",
    )
    regions: Annotated[tuple[Region, ...], AfterValidator(_once)] = Field(
        default=(), max_length=50, description="Regions that the addresses are in; default: all, in one list."
    )
    credentials: Credentials = Field(
        default=DefaultCredentials(default=True),
        description="{default: true}, or a reference to a key file of a service account.",
    )
    endpoint: Annotated[str, Field(max_length=300), AfterValidator(secure_origin)] = Field(
        default=ENDPOINT, description="Another address of the API; --allow-api-host must name its host."
    )


def host_of(url: str) -> str:
    """Returns the host of a URL, with the port if it has one."""
    return urlsplit(url).netloc
