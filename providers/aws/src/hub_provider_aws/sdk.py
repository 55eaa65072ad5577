"""All that is used of botocore: the signature of a request, and the sources of the default credential.

botocore's own client is not used: it bounds neither the time nor the size of an answer, a request in a thread goes on
after the hub has cancelled it, and its model of EC2 takes 22 MiB. Requests are sent by :mod:`hub_provider_aws.api`.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleWithWebIdentityProvider,
    ContainerProvider,
    CredentialResolver,
    Credentials,
    EnvProvider,
    InstanceMetadataProvider,
)
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import URLLib3Session
from botocore.session import Session
from botocore.utils import InstanceMetadataFetcher, create_nested_client

from hub.plugin import TransientProviderError

METADATA_TIMEOUT: Final = 1
"""Seconds for one request to the instance metadata service, which is one hop away."""


class Keys(NamedTuple):
    """A credential that requests are signed with."""

    access_key: str
    secret_key: str
    token: str | None = None


def sign(url: str, body: bytes, headers: Mapping[str, str], keys: Keys, region: str) -> dict[str, str]:
    """Returns the headers of a signed POST request to EC2. Signing sends nothing and reads no file."""
    request = AWSRequest("POST", url, data=body, headers=dict(headers))
    SigV4Auth(Credentials(*keys), "ec2", region).add_auth(request)
    return {str(name): str(value) for name, value in request.headers.items()}


class DefaultKeys:
    """The credential of the hub's surroundings. Blocks: call it in a thread.

    The sources are, in this order: environment variables, web identity (EKS service accounts), the container
    credentials endpoint (EKS Pod Identity, ECS), and IMDSv2. Files with profiles are not read, so no profile can name a
    program to run; proxies of the environment are not used.

    Args:
        region: The region whose STS exchanges a web identity.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._found: Any = None

    def get(self, reload: bool) -> Keys:
        """Returns the current keys; temporary ones are renewed before they expire.

        Args:
            reload: Ask the sources again.

        Raises:
            TransientProviderError: No source has a credential now, or a source failed.
        """
        with self._lock:
            try:
                if self._found is None or reload:
                    self._found = _resolver(self._region).load_credentials()
                if self._found is not None:
                    return Keys(*self._found.get_frozen_credentials()[:3])
                reason = "no source has one"
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))[:64]
                raise TransientProviderError(f"STS refuses the web identity ({code}); check the role's trust") from None
            except (BotoCoreError, OSError, ValueError, KeyError, RuntimeError) as error:
                reason = type(error).__name__  # its text may quote an answer that contains keys
        raise TransientProviderError(
            f"there is no default credential ({reason}); set it in the environment, give the hub's Pod a web identity "
            "or container credentials, or let it reach IMDSv2"
        )


def _resolver(region: str) -> Any:
    no_file = (None, None, os.devnull, None)
    session = Session(
        session_vars={"profile": (None, None, None, None), "config_file": no_file, "credentials_file": no_file}
    )
    calm = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1}, proxies={})

    def client(service: str, config: Any) -> Any:
        return create_nested_client(session, service, region_name=region, config=calm.merge(config))

    metadata = InstanceMetadataFetcher(
        timeout=METADATA_TIMEOUT,
        num_attempts=1,
        config={
            "ec2_metadata_v1_disabled": True,
            "ec2_metadata_service_endpoint": session.get_config_variable("ec2_metadata_service_endpoint"),
        },
    )
    # No argument turns the environment's proxies off, and a proxy would see the role's keys.
    metadata._session = URLLib3Session(timeout=METADATA_TIMEOUT, proxies={})  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return CredentialResolver(
        [
            EnvProvider(),
            AssumeRoleWithWebIdentityProvider(dict, client, "default"),
            ContainerProvider(),
            InstanceMetadataProvider(metadata),
        ]
    )
