"""``allocations.clouds[].config`` of the provider ``azure``. Does not import the login library."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hub.plugin.fields import SecretRef

ENDPOINT: Final = "https://management.azure.com"
AUTHORITY: Final = "https://login.microsoftonline.com"

_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


def _origin(text: str) -> str:
    """Returns scheme, host and port of a URL without path, in lower case."""
    found = re.fullmatch(r"(https?)://([a-z0-9.-]{1,253})(:[0-9]{1,5})?/?", text.lower())
    if found is None:
        raise ValueError(f"must be like {ENDPOINT}, without a path")
    scheme, host, port = found[1], found[2], found[3] or ""
    if scheme == "http" and not _is_loopback(host):
        raise ValueError("must be https: requests carry the credential")
    return f"{scheme}://{host}{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


Uuid = Annotated[str, Field(pattern=f"^{_UUID}$"), AfterValidator(str.lower)]
Tenant = Annotated[str, Field(pattern=r"^[A-Za-z0-9-][A-Za-z0-9.-]{0,252}$")]
Origin = Annotated[str, Field(max_length=300), AfterValidator(_origin)]
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_()-][A-Za-z0-9_.()-]{0,89}$")]
"""Group names with other letters than ASCII are not supported."""


class ManagedIdentity(BaseModel):
    """The identity that Azure assigned to the virtual machine of the hub."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: Uuid | None = Field(
        default=None, alias="clientId", description="A user-assigned identity; default: the system-assigned one."
    )


class Credentials(BaseModel):
    """How the hub logs in: exactly one of the three ways."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workload_identity: Literal[True] | None = Field(
        default=None,
        alias="workloadIdentity",
        description="The identity federated with the hub's ServiceAccount; its webhook sets the environment.",
    )
    managed_identity: ManagedIdentity | None = Field(
        default=None, alias="managedIdentity", description="The identity of the machine that the hub runs on."
    )
    tenant_id: Tenant | None = Field(default=None, alias="tenantId", description="The tenant of clientId.")
    client_id: Uuid | None = Field(default=None, alias="clientId", description="A service principal.")
    client_secret: SecretRef | None = Field(
        default=None, alias="clientSecret", description="Its secret; read again when a login is refused."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        principal = (self.tenant_id, self.client_id, self.client_secret)
        ways = (self.workload_identity, self.managed_identity, next((part for part in principal if part), None))
        if sum(way is not None for way in ways) != 1:
            raise ValueError("must have exactly one of workloadIdentity, managedIdentity and a service principal")
        if any(principal) and not all(principal):
            raise ValueError("a service principal needs tenantId, clientId and clientSecret")
        return self

    @property
    def place(self) -> str:
        """Where the credential comes from, for error messages."""
        if self.client_secret is not None:
            return f"the client secret from {' '.join(self.client_secret.ref().values())}"
        return "the workload identity" if self.workload_identity else "the managed identity"


class AzureConfig(BaseModel):
    """One subscription of Azure, and the login for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscription: Uuid = Field(description="The subscription of the addresses and of the virtual machines.")
    resource_groups: tuple[GroupName, ...] = Field(
        default=(),
        alias="resourceGroups",
        max_length=50,
        description="Resource groups that the addresses are in; default: all of the subscription.",
    )
    credentials: Credentials
    endpoint: Origin = Field(
        default=ENDPOINT, description="Another Resource Manager; --allow-api-host must name its host."
    )
    authority: Origin = Field(
        default=AUTHORITY, description="Another login service; --allow-api-host must name its host."
    )

    @model_validator(mode="after")
    def _groups_once(self) -> Self:
        if len({group.lower() for group in self.resource_groups}) != len(self.resource_groups):
            raise ValueError("names a resource group twice")
        return self


def host_of(origin: str) -> str:
    """Returns the host of a URL, with the port if it has one."""
    return urlsplit(origin).netloc
