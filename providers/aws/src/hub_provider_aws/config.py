"""``allocations.clouds[].config`` of the provider ``aws``. Imports no botocore: ``hub check`` stays fast."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hub.plugin.fields import SecretRef

REGION: Final = r"[a-z]{2,4}(?:-[a-z]{2,12}){1,3}-\d{1,2}"
"""The form of a region's name, such as eu-west-1, us-gov-east-1 and us-iso-east-1."""


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    try:
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("has an invalid port") from None
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
        raise ValueError("must be like https://vpce-0abc.ec2.eu-west-1.vpce.amazonaws.com")
    if parts.username is not None or parts.query or parts.fragment or parts.path.strip("/"):
        raise ValueError("must have no user, path, query or fragment")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("must be https")
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class AwsCredentials(BaseModel):
    """Where the credential comes from: the hub's surroundings, or a key pair by reference."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Literal[True] | None = Field(
        default=None,
        description="The credential of the hub's Pod or machine: environment, web identity, container, IMDSv2.",
    )
    access_key_id: SecretRef | None = Field(default=None, alias="accessKeyId", description="An access key's id.")
    secret_access_key: SecretRef | None = Field(
        default=None, alias="secretAccessKey", description="The secret of accessKeyId."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        parts = (self.access_key_id is not None) + (self.secret_access_key is not None)
        if parts != (0 if self.default else 2):
            raise ValueError("must have default: true, or accessKeyId and secretAccessKey")
        return self


class AwsConfig(BaseModel):
    """One account of AWS in one region."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: str = Field(
        pattern=f"^{REGION}$", description="The region of the addresses and of the instances that get them."
    )
    credentials: AwsCredentials = Field(description="The credential of the account.")
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = Field(
        default=None,
        max_length=512,
        description="Another address of the EC2 API; its host must be named by --allow-api-host.",
    )

    @property
    def default_host(self) -> str:
        """The host of the region's EC2 API."""
        return f"ec2.{self.region}.amazonaws.com" + (".cn" if self.region.startswith("cn-") else "")

    @property
    def url(self) -> str:
        """The address that requests are sent to, without a path."""
        return self.endpoint or f"https://{self.default_host}"

    @property
    def host(self) -> str:
        """The host of :attr:`url`, with the port if it has one."""
        return urlsplit(self.url).netloc
