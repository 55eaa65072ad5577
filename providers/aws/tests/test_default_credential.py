"""Tests of ``credentials: {default: true}``: the sources, and what is never a source."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hub_provider_aws import AwsConfig, open_account
from hub_provider_aws.sdk import DefaultKeys, Keys
from hub_provider_aws.testing import ACCESS_KEY, SECRET_KEY, FakeAws
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin import TransientProviderError

ROLE = "/latest/meta-data/iam/security-credentials/"
STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASTS</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
DENIED = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
<Code>AccessDenied</Code><Message>Not authorized</Message></Error></ErrorResponse>"""


class Surroundings:
    """The services around a Pod on AWS, on one loopback port: metadata, container credentials, STS, and a proxy.

    Attributes:
        asked: Method and target of each request.
        answers: Status and body by method and target; everything else is 404.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, str]] = {}
        surroundings = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = f"{self.command} {self.path}"
                surroundings.asked.append(asked)
                status, body = surroundings.answers.get(asked, (404, ""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = do_POST = do_CONNECT = answer  # noqa: N815 - the names of http.server

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of http.server
                """Prints nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def _metadata(key: str) -> str:
    body = {"Code": "Success", "AccessKeyId": key, "SecretAccessKey": "s", "Token": "t"}
    return json.dumps(body | {"Expiration": "2999-01-01T00:00:00Z"})


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Generator[Surroundings, None, None]:
    """The surroundings, without any credential in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    surroundings = Surroundings()
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", surroundings.url)
    thread = threading.Thread(target=surroundings.server.serve_forever, args=(0.05,))
    thread.start()
    yield surroundings
    surroundings.server.shutdown()
    surroundings.server.server_close()
    thread.join()


@pytest.fixture
def token(around: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web identity, as EKS mounts it."""
    (tmp_path / "token").write_text("web.identity.token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/hub")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", around.url)


async def test_the_environment_comes_first(
    around: Surroundings, aws: FakeAws, config: AwsConfig, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account with default: true signs with the key pair of the environment, and asks nothing for it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    default = AwsConfig.model_validate(
        {"region": config.region, "endpoint": config.endpoint, "credentials": {"default": True}}
    )

    async with open_account(LocalAccount(hub), default, None) as provider:
        await provider.describe(["198.51.100.1"])

    assert [served.status for served in aws.requests] == [200]
    assert around.asked == []


@pytest.mark.usefixtures("token")
def test_a_web_identity_is_exchanged_at_sts(around: Surroundings) -> None:
    """The token that EKS mounts is exchanged at STS once, and the keys are used until they expire."""
    around.answers["POST /"] = (200, STS)
    keys = DefaultKeys("eu-west-1")

    assert [keys.get(reload=False) for _ in range(2)] == [Keys("ASTS", "s", "t")] * 2
    assert around.asked == ["POST /"]


@pytest.mark.usefixtures("token")
def test_a_refused_web_identity_names_the_role(around: Surroundings) -> None:
    """If STS refuses the token, it is asked once, the error says what to check, and the next call asks again."""
    around.answers["POST /"] = (403, DENIED)
    keys = DefaultKeys("eu-west-1")

    with pytest.raises(TransientProviderError, match=r"STS refuses the web identity \(AccessDenied\)"):
        keys.get(reload=False)
    assert around.asked == ["POST /"]

    around.answers["POST /"] = (200, STS)
    assert keys.get(reload=False).access_key == "ASTS"


def test_the_container_endpoint_is_asked(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint of EKS Pod Identity and ECS gives the keys."""
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{around.url}/v1/credentials")
    around.answers["GET /v1/credentials"] = (200, _metadata("ACONTAINER"))

    assert DefaultKeys("eu-west-1").get(reload=False).access_key == "ACONTAINER"
    assert around.asked == ["GET /v1/credentials"]


def test_instance_metadata_comes_last_and_is_asked_again_on_reload(around: Surroundings) -> None:
    """The instance's role gives the keys through IMDSv2; a reload asks for them again."""
    around.answers |= {
        "PUT /latest/api/token": (200, "session"),
        f"GET {ROLE}": (200, "hub"),
        f"GET {ROLE}hub": (200, _metadata("AROLE")),
    }
    keys = DefaultKeys("eu-west-1")

    first, again = keys.get(reload=False), keys.get(reload=False)
    around.answers[f"GET {ROLE}hub"] = (200, _metadata("ANEW"))
    reloaded = keys.get(reload=True)

    assert first == again == Keys("AROLE", "s", "t")
    assert reloaded == Keys("ANEW", "s", "t")
    assert around.asked == ["PUT /latest/api/token", f"GET {ROLE}", f"GET {ROLE}hub"] * 2


async def test_without_a_source_the_error_names_all(around: Surroundings, config: AwsConfig, hub: LocalHub) -> None:
    """Without any credential the account has a transient error that names the sources; IMDSv1 is not tried."""
    around.answers |= {f"GET {ROLE}": (200, "hub"), f"GET {ROLE}hub": (200, _metadata("AV1"))}
    default = AwsConfig.model_validate({"region": config.region, "credentials": {"default": True}})

    async with open_account(LocalAccount(hub, name="aws-prod"), default, None) as provider:
        with pytest.raises(
            TransientProviderError, match=r"account aws-prod: .* there is no default credential .* web identity"
        ):
            await provider.describe(["198.51.100.1"])

    assert around.asked == ["PUT /latest/api/token"]


@pytest.mark.parametrize("source", ["metadata", "sts"])
def test_proxies_of_the_environment_are_not_used(
    source: str, around: Surroundings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proxy of the environment sees a credential, neither of the metadata service nor of STS."""
    around.answers |= {
        "POST /": (200, STS),
        "PUT /latest/api/token": (200, "session"),
        f"GET {ROLE}": (200, "hub"),
        f"GET {ROLE}hub": (200, _metadata("AROLE")),
    }
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, around.url)
    if source == "sts":
        request.getfixturevalue("token")

    assert DefaultKeys("eu-west-1").get(reload=False).access_key == {"metadata": "AROLE", "sts": "ASTS"}[source]
    assert around.asked
    assert not [asked for asked in around.asked if "http://" in asked or asked.startswith("CONNECT")]


def test_profiles_are_not_read(around: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither keys nor programs of a profile are used, even if the environment names the files and the profile."""
    ran = tmp_path / "ran"
    keys = "aws_access_key_id = AFILE\naws_secret_access_key = s\n"
    (tmp_path / "credentials").write_text(f"[default]\n{keys}[p]\n{keys}")
    (tmp_path / "config").write_text(f"[default]\n[profile p]\ncredential_process = /bin/touch {ran}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "p")

    with pytest.raises(TransientProviderError, match="there is no default credential"):
        DefaultKeys("eu-west-1").get(reload=False)

    assert not ran.exists()
    assert around.asked == ["PUT /latest/api/token"]
