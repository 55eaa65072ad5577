"""Where access tokens come from, and which hosts a credential may lead to."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hub_provider_gcp import GcpConfig, open_account
from hub_provider_gcp.testing import EMAIL, PROJECT, SUBJECT, GcpFake
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin import TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AddressProvider, Free


@dataclass
class Scene:
    """A provider, its fake, and the hub's context with the secret KEY."""

    fake: GcpFake
    hub: LocalHub
    provider: AddressProvider

    def logins(self) -> list[str]:
        """The requests for a token."""
        return [served.text for served in self.fake.log if served.kind == "login"]

    async def ask(self) -> None:
        """Makes one request that needs a token."""
        assert await self.provider.describe([]) == {}


@asynccontextmanager
async def scene(credentials: Any, fake: GcpFake | None = None) -> AsyncGenerator[Scene, None]:
    """Opens a provider; KEY is the fake's own credential file."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(fake or GcpFake())
        hub = LocalHub(secrets={"KEY": fake.key_file()}, allow_api_hosts=frozenset((fake.host,)))
        await stack.enter_async_context(hub)
        config = GcpConfig.model_validate({"project": PROJECT, "credentials": credentials, "endpoint": fake.url})
        provider = await stack.enter_async_context(open_account(LocalAccount(hub, name="gcp-prod"), config))
        yield Scene(fake, hub, provider)


KEY = {"env": "KEY"}
LOGIN = ["GET /subject", "POST /token"]
"""The requests for a token with the fake's credential file."""


@cache
def key_pair() -> tuple[str, str]:
    """A private and a public key as PEM; made once, because it takes 0.1 s."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def service_account(fake: GcpFake, **more: str) -> str:
    """The key file of a service account that the fake knows."""
    private, fake.public_key = key_pair()
    key = {"type": "service_account", "client_email": EMAIL, "token_uri": f"{fake.url}/token", "private_key": private}
    return json.dumps({**key, **more})


async def test_key_of_a_service_account_is_exchanged() -> None:
    """A key file signs a request for a token."""
    async with scene(KEY) as it:
        it.hub.secrets["KEY"] = service_account(it.fake)
        await it.ask()
        assert it.logins() == ["POST /token"]


async def test_token_is_used_until_it_ends() -> None:
    """One token serves many requests, and is replaced a minute before it ends."""
    async with scene(KEY) as it:
        await it.ask()
        await it.ask()
        assert it.logins() == LOGIN
    fake = GcpFake()
    fake.lifetime = 60.0
    async with scene(KEY, fake) as it:
        await it.ask()
        await it.ask()
        assert it.logins() == LOGIN * 2


async def test_expired_token_is_replaced_after_a_401() -> None:
    """A token that the API refuses is replaced once, with a credential that is read again."""
    async with scene(KEY) as it:
        await it.ask()
        it.fake.expire_tokens()
        await it.ask()
        assert it.logins() == LOGIN * 2


async def test_file_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default credential is the file that GOOGLE_APPLICATION_CREDENTIALS names."""
    path = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    async with scene({"default": True}) as it:
        with pytest.raises(TerminalProviderError, match="cannot read"):
            await it.ask()
        path.write_text(it.fake.key_file())
        await it.ask()
        assert it.logins() == LOGIN


async def test_metadata_server_is_used_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that variable the token comes from the metadata server."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    async with scene({"default": True}) as it:
        monkeypatch.setenv("GCE_METADATA_HOST", it.fake.host)
        await it.ask()
        assert it.logins() == ["GET /computeMetadata/v1/instance/service-accounts/default/token"]
        monkeypatch.setenv("GCE_METADATA_HOST", "10.0.0.1")
        it.fake.expire_tokens()
        with pytest.raises(TerminalProviderError, match="--allow-api-host"):
            await it.ask()


@pytest.mark.parametrize("source", ["metadata", "key"])
async def test_project_is_that_of_the_credential_by_default(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Without ``project``, the key file or the metadata server names it."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    async with GcpFake() as fake, LocalHub(secrets={}, allow_api_hosts=frozenset((fake.host,))) as hub:
        monkeypatch.setenv("GCE_METADATA_HOST", fake.host)
        hub.secrets["KEY"] = service_account(fake, project_id=PROJECT)
        credentials = {"default": True} if source == "metadata" else KEY
        config = GcpConfig.model_validate({"credentials": credentials, "endpoint": fake.url})
        address = fake.cloud.reserve()
        async with open_account(LocalAccount(hub, name="gcp-prod"), config) as provider:
            assert await provider.describe([address]) == {address: Free("us-west1")}


async def test_a_credential_without_a_project_is_an_error() -> None:
    """If neither the configuration nor the key file names a project, the error says what to write."""
    async with GcpFake() as fake, LocalHub(secrets={}, allow_api_hosts=frozenset((fake.host,))) as hub:
        hub.secrets["KEY"] = fake.key_file()
        config = GcpConfig.model_validate({"credentials": KEY, "endpoint": fake.url})
        with pytest.raises(TerminalProviderError, match="names no project; write project: into config"):
            async with open_account(LocalAccount(hub, name="gcp-prod"), config):
                pass


async def test_federated_identity_is_exchanged(tmp_path: Path) -> None:
    """A workload identity file may name a file with the identity's token, as in a Pod."""
    token = tmp_path / "token"
    token.write_text(SUBJECT)
    async with scene(KEY) as it:
        info = json.loads(it.fake.key_file())
        it.hub.secrets["KEY"] = json.dumps({**info, "credential_source": {"file": str(token)}})
        await it.ask()
        assert it.logins() == ["POST /token"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret-text",
        "[]",
        "{}",
        '{"type": "service_account"}',
        '{"type": "service_account", "client_email": "a", "token_uri": "https://b", "private_key": "secret-text"}',
        '{"type": "external_account"}',
        '{"type": "external_account", "credential_source": {"executable": {"command": "/bin/secret-text"}}}',
        '{"type": "authorized_user", "refresh_token": "secret-text"}',
        '{"type": "impersonated_service_account"}',
        "[" * 100_000,
    ],
)
async def test_invalid_credential_is_terminal(text: str) -> None:
    """A text that is no key file leads to an error that says where it is, and not what it is."""
    async with scene(KEY) as it:
        it.hub.secrets["KEY"] = text
        with pytest.raises(
            TerminalProviderError, match="account gcp-prod: the credential from env KEY is not valid"
        ) as it_is:
            await it.ask()
        assert "secret-text" not in str(it_is.value)
        assert it.fake.log == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://evil.example/token", "--allow-api-host evil.example"),
        ("http://oauth2.googleapis.com/token", "not https"),
        ("https://oauth2.googleapis.com.evil.example/token", "--allow-api-host"),
        ("file:///etc/passwd", "not https"),
    ],
)
async def test_credential_leads_to_no_other_host(url: str, words: str) -> None:
    """A key file cannot make the hub contact a host that its flags do not allow."""
    async with scene(KEY) as it:
        it.hub.secrets["KEY"] = service_account(it.fake, token_uri=url)
        with pytest.raises(TerminalProviderError, match=words):
            await it.ask()


async def test_refused_key_is_terminal() -> None:
    """A key that the login service refuses is an error with the service's code, and no request goes to the API."""
    async with scene(KEY) as it:
        it.hub.secrets["KEY"] = service_account(it.fake, client_email="other@example.com")
        with pytest.raises(TerminalProviderError, match=r"the login is refused \(400 invalid_grant\)"):
            await it.ask()
        assert it.logins() == [served.text for served in it.fake.log] == ["POST /token"]


async def test_failing_login_service_is_asked_once() -> None:
    """A 5xx of the login service is a transient error after one request: google-auth does not repeat it."""
    async with scene(KEY) as it:
        it.fake.login_status = 503
        with pytest.raises(TransientProviderError, match=r"login at 127\.0\.0\.1: 503"):
            await it.ask()
        assert it.logins() == LOGIN


async def test_login_service_with_a_broken_answer_is_transient() -> None:
    """A success without a token is an error that does not freeze the account."""
    async with scene(KEY) as it:
        it.fake.login_status = 200
        with pytest.raises(TransientProviderError, match="broken"):
            await it.ask()


async def test_library_is_imported_with_the_first_request() -> None:
    """Registering and validating do not import google-auth or aiohttp."""
    code = (
        "import sys, hub_provider_gcp as gcp; list(gcp.hub_register_providers()); gcp.GcpConfig(project='a-team');"
        "print([name for name in ('google.auth', 'aiohttp') if name in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.decode().strip() == "[]"
