"""Tests of the declaration, the configuration and the providerIDs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import hub_provider_aws
import pytest
from hub_provider_aws import AwsConfig, open_account
from hub_provider_aws.provider import ElasticIps
from hub_testkit.contexts import LocalAccount, LocalHub
from pydantic import ValidationError

from hub.plugin import Node, TerminalProviderError

PAIR = {"accessKeyId": {"env": "ID"}, "secretAccessKey": {"env": "SECRET"}}


def test_registering_imports_neither_botocore_nor_aiohttp() -> None:
    """The type is declared without importing botocore or aiohttp."""
    program = (
        "import sys, hub_provider_aws; list(hub_provider_aws.hub_register_providers()); "
        "print(sorted({'botocore', 'aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_type_offers_addresses_only() -> None:
    """The type's name is aws; it resolves no nodes, and says that a node without its address may be cut off."""
    (declared,) = hub_provider_aws.hub_register_providers()
    assert (declared.name, declared.open) == ("aws", None)
    assert declared.addresses is not None
    assert declared.addresses.config is AwsConfig
    assert declared.addresses.cuts == {"source"}


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("eu-west-1", "https://ec2.eu-west-1.amazonaws.com"),
        ("us-gov-east-1", "https://ec2.us-gov-east-1.amazonaws.com"),
        ("cn-north-1", "https://ec2.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_endpoint_is_the_regions(region: str, url: str) -> None:
    """Without endpoint, requests go to the region's own host, which is another domain in China."""
    config = AwsConfig.model_validate({"region": region, "credentials": {"default": True}})
    assert config.url == url
    assert config.host == config.default_host


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"region": "eu-west-1.evil.example/"}, "region"),
        ({"region": "EU-WEST-1"}, "region"),
        ({"region": "eu-west-1\n"}, "region"),
        ({"region": None}, "region"),
        ({"regions": ["eu-west-1"]}, "regions"),
        ({"credentials": {}}, "must have default: true, or accessKeyId and secretAccessKey"),
        ({"credentials": {"default": False}}, "default"),
        ({"credentials": {"default": True, **PAIR}}, "must have default: true, or accessKeyId and secretAccessKey"),
        ({"credentials": {"accessKeyId": {"env": "ID"}}}, "must have default: true"),
        ({"credentials": {**PAIR, "secretAccessKey": "abc"}}, "never the secret itself"),
        ({"credentials": {"profile": "prod"}}, "profile"),
        ({"endpoint": "http://ec2.example.com"}, "must be https"),
        ({"endpoint": "https://user:pass@ec2.example.com"}, "must have no user"),
        ({"endpoint": "https://ec2.example.com/path"}, "must have no user, path"),
        ({"endpoint": "https://ec2.example.com:x"}, "has an invalid port"),
        ({"endpoint": "ec2.example.com"}, "must be like https://"),
    ],
)
def test_a_wrong_configuration_is_refused(change: dict[str, Any], said: str) -> None:
    """Unknown keys, other names than a region's, secrets in clear and unencrypted endpoints are refused."""
    with pytest.raises(ValidationError, match=said):
        AwsConfig.model_validate({"region": "eu-west-1", "credentials": PAIR} | change)


async def test_an_endpoint_that_the_flags_do_not_allow_is_refused(config: AwsConfig) -> None:
    """The account is not opened if no --allow-api-host names the endpoint's host."""
    async with LocalHub(secrets={}) as hub:
        with pytest.raises(TerminalProviderError, match="--allow-api-host"):
            async with open_account(LocalAccount(hub), config, None):
                pass


@pytest.mark.parametrize(
    ("provider_id", "instance"),
    [
        ("aws:///eu-west-1a/i-0123456789abcdef0", "i-0123456789abcdef0"),
        ("aws:///eu-west-1c/i-01234567", "i-01234567"),
        ("aws:///eu-west-1-ham-1a/i-0123456789abcdef0", "i-0123456789abcdef0"),
        ("", None),
        ("aws:///eu-west-2a/i-0123456789abcdef0", None),
        ("aws:///eu-west-10a/i-0123456789abcdef0", None),
        ("aws:///eu-west-1/i-0123456789abcdef0", None),
        ("aws://eu-west-1a/i-0123456789abcdef0", None),
        ("aws:///eu-west-1a/i-0123456789abcdef0\n", None),
        ("aws:///eu-west-1a/../eu-west-1a/i-0123456789abcdef0", None),
        ("aws:///eu-west-1a/../../i-0123456789abcdef0", None),
        ("aws:///eu-west-1a/i-0123456789ABCDEF0", None),
        ("aws:///eu-west-1a/i-٠١٢٣٤٥٦٧", None),
        ("aws:///eu-west-1a/i-0123456789abcdef0&Filter.2.Name=x", None),
        ("aws:///eu-west-1b/2b3c-fargate/fargate-ip-10-0-0-1", None),
        ("gce://project/eu-west-1a/i-0123456789abcdef0", None),
        ("aws:///eu-west-1a/i-" + "0" * 10_000, None),
        ("aws:///eu-west-1" + "-a" * 5_000 + "/i-01234567", None),
    ],
)
async def test_only_exact_provider_ids_of_the_region_name_an_instance(
    provider_id: str, instance: str | None, provider: ElasticIps
) -> None:
    """Anything but ``aws:///ZONE/ID`` with a zone of the account's region is not an instance of the account."""
    assert provider.instance_of(Node(name="n", provider_id=provider_id)) == instance
