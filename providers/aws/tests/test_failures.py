"""Tests of all that can go wrong with a request: errors of EC2, broken answers, refused credentials, waiting."""

from __future__ import annotations

import pytest
from hub_provider_aws import AwsConfig, api, open_account
from hub_provider_aws.provider import ElasticIps
from hub_provider_aws.testing import ACCESS_KEY, SECRET_KEY, FakeAws
from hub_testkit.contexts import LocalAccount, LocalHub
from werkzeug.wrappers import Request, Response

from hub.plugin import CredentialError, ProviderError, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AddressConflict, Free, Held, Order, QuotaExceeded, UnsupportedInstance

Kind = type[ProviderError]
ADDRESS = "198.51.100.1"
TWIN = f"<item><publicIp>{ADDRESS}</publicIp><allocationId>eipalloc-1</allocationId></item>"

READS: list[tuple[int, str, Kind, str]] = [
    (503, "RequestLimitExceeded", QuotaExceeded, "more requests than EC2 allows"),
    (400, "Throttling", QuotaExceeded, "more requests than EC2 allows"),
    (429, "", QuotaExceeded, "more requests than EC2 allows"),
    (401, "AuthFailure", TerminalProviderError, "renew the account's credential"),
    (403, "InvalidClientTokenId", TerminalProviderError, "renew the account's credential"),
    (400, "RequestExpired", TerminalProviderError, "check the hub's clock"),
    (403, "UnauthorizedOperation", TerminalProviderError, "allow the account's credential ec2:DescribeAddresses"),
    (403, "", TerminalProviderError, "allow the account's credential ec2:DescribeAddresses"),
    (400, "InvalidParameterValue", TransientProviderError, "400 InvalidParameterValue: no"),
    (301, "", TerminalProviderError, "redirects are not followed, correct endpoint"),
    (500, "InternalError", TransientProviderError, "500 InternalError: no"),
    (503, "Unavailable", TransientProviderError, "503 Unavailable"),
    (404, "", TransientProviderError, "404"),
]

WRITES: list[tuple[int, str, Kind, str]] = [
    (403, "UnauthorizedOperation", TerminalProviderError, "allow the account's credential ec2:AssociateAddress"),
    (400, "Resource.AlreadyAssociated", AddressConflict, "Resource.AlreadyAssociated: no"),
    (400, "InvalidAllocationID.NotFound", AddressConflict, "InvalidAllocationID.NotFound"),
    (400, "InvalidNetworkInterfaceID.NotFound", AddressConflict, "InvalidNetworkInterfaceID.NotFound"),
    (400, "IncorrectInstanceState", AddressConflict, "IncorrectInstanceState"),
    (400, "Gateway.NotAttached", UnsupportedInstance, "Gateway.NotAttached: no; the hub takes another node"),
    (400, "NeverSeenBefore", UnsupportedInstance, "NeverSeenBefore"),
    (503, "RequestLimitExceeded", QuotaExceeded, "more requests than EC2 allows"),
    (500, "InternalError", TransientProviderError, "500 InternalError"),
]


@pytest.fixture
def attach(aws: FakeAws, provider: ElasticIps) -> Order:
    """An attach that would succeed."""
    instance = provider.instance_of(aws.add_instance("n1"))
    assert instance is not None
    return Order(aws.reserve(), instance, Free("eu-west-1"))


@pytest.mark.parametrize(("status", "code", "kind", "said"), READS)
async def test_errors_of_a_read_are_translated(
    status: int, code: str, kind: Kind, said: str, aws: FakeAws, provider: ElasticIps
) -> None:
    """Each error of EC2 becomes one kind of error, which names the account, the host, the address and what to do."""
    body = f"<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>"
    aws.answer(status, body if code else "<html>oops", {"Location": "http://169.254.169.254/"}, times=None)

    with pytest.raises(ProviderError) as caught:
        await provider.describe([ADDRESS])

    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert f"account aws-prod: EC2 at 127.0.0.1:{aws.url.rpartition(':')[2]}: DescribeAddresses" in str(caught.value)
    assert ADDRESS in str(caught.value)


@pytest.mark.parametrize(("status", "code", "kind", "said"), WRITES)
async def test_errors_of_a_write_are_translated(
    status: int, code: str, kind: Kind, said: str, attach: Order, aws: FakeAws, provider: ElasticIps
) -> None:
    """Each error of a write becomes one kind of error, which names the address and the instance."""
    aws.refuse(status, code, action="AssociateAddress")

    with pytest.raises(ProviderError) as caught:
        await provider.attach(attach)

    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert f"{attach.address} on {attach.instance}" in str(caught.value)
    assert aws.changes == 0


async def test_detach_without_permission_names_it(attach: Order, aws: FakeAws, provider: ElasticIps) -> None:
    """A detach that is forbidden names the permission ec2:DisassociateAddress."""
    aws.hold(attach.address, "n1")
    held = (await provider.describe([attach.address]))[attach.address]
    aws.refuse(403, "UnauthorizedOperation", action="DisassociateAddress")

    with pytest.raises(TerminalProviderError, match="ec2:DisassociateAddress"):
        await provider.detach(Order(attach.address, attach.instance, held))

    assert isinstance(held, Held)
    assert aws.holder_of(attach.address) == "n1"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "[]",
        "<html><body>welcome</body></html>",
        "<DescribeAddressesResponse/>",
        "<DescribeAddressesResponse><addressesSet>",
        "<DescribeAddressesResponse><addressesSet><item/></addressesSet></DescribeAddressesResponse>",
        "<DescribeAddressesResponse><addressesSet/><nextToken>x</nextToken></DescribeAddressesResponse>",
        "<DescribeInstancesResponse><addressesSet/></DescribeInstancesResponse>",
        f"<DescribeAddressesResponse><addressesSet>{TWIN}{TWIN}</addressesSet></DescribeAddressesResponse>",
    ],
)
async def test_a_broken_answer_is_an_error(body: str, aws: FakeAws, provider: ElasticIps) -> None:
    """A 200 that is not a complete answer raises a transient error: no address becomes free or not reserved."""
    aws.answer(200, body)

    with pytest.raises(TransientProviderError, match="DescribeAddresses"):
        await provider.describe([ADDRESS])


@pytest.mark.parametrize(
    "instance",
    ["<instanceId>i-1</instanceId>", "<instanceState><name>running</name></instanceState>", ""],
)
async def test_an_instance_without_its_parts_is_an_error(instance: str, aws: FakeAws, provider: ElasticIps) -> None:
    """An instance without id, state or network interfaces makes the answer broken."""
    item = f"<item>{instance}</item>"
    reservation = f"<item><instancesSet>{item}</instancesSet></item>" if instance else "<item/>"
    aws.answer(
        200, f"<DescribeInstancesResponse><reservationSet>{reservation}</reservationSet></DescribeInstancesResponse>"
    )

    with pytest.raises(TransientProviderError, match="DescribeInstances"):
        await provider.inspect(["i-1"])


async def test_a_running_instance_without_interfaces_is_an_error(aws: FakeAws, provider: ElasticIps) -> None:
    """A running instance whose network interfaces the answer does not mention is not unsupported for ever."""
    item = "<item><instanceId>i-1</instanceId><instanceState><name>running</name></instanceState></item>"
    reservation = f"<item><instancesSet>{item}</instancesSet></item>"
    aws.answer(
        200, f"<DescribeInstancesResponse><reservationSet>{reservation}</reservationSet></DescribeInstancesResponse>"
    )

    with pytest.raises(TransientProviderError, match="networkInterfaceSet is missing"):
        await provider.inspect(["i-1"])


async def test_an_associate_answer_without_an_association_is_an_error(
    attach: Order, aws: FakeAws, provider: ElasticIps
) -> None:
    """Attach is done only if EC2 names the new association."""
    aws.fail("no-key", on="write")

    with pytest.raises(TransientProviderError, match="associationId"):
        await provider.attach(attach)


async def test_a_cut_answer_is_an_error(aws: FakeAws, provider: ElasticIps) -> None:
    """An answer that ends before its Content-Length raises a transient error."""

    def cut(_request: Request, _action: str) -> Response:
        return Response(
            "<DescribeAddressesResponse><addressesSet/></DescribeAddressesResponse>", headers={"X-Cut": "9"}
        )

    aws.fail_with(cut)

    with pytest.raises(TransientProviderError, match="check the network between the hub and AWS"):
        await provider.describe([ADDRESS])


async def test_an_answer_that_is_too_large_is_an_error(
    aws: FakeAws, provider: ElasticIps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading stops at the limit of a body."""
    monkeypatch.setattr(api, "MAX_BODY", 100_000)
    aws.answer(200, f"<DescribeAddressesResponse><!--{'x' * 100_001}--><addressesSet/></DescribeAddressesResponse>")

    with pytest.raises(TransientProviderError, match="larger than 100000 bytes"):
        await provider.describe([ADDRESS])


async def test_entities_of_an_answer_do_not_grow(aws: FakeAws, provider: ElasticIps) -> None:
    """An answer whose entities would expand to a gigabyte is broken."""
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    answer = (
        f'<!DOCTYPE x [<!ENTITY e0 "0123456789">{entities}]><DescribeAddressesResponse>&e9;</DescribeAddressesResponse>'
    )
    aws.answer(200, answer)

    with pytest.raises(TransientProviderError, match="not a DescribeAddressesResponse"):
        await provider.describe([ADDRESS])


async def test_a_host_that_does_not_answer_is_a_transient_error(hub: LocalHub, config: AwsConfig, aws: FakeAws) -> None:
    """A refused connection raises a transient error that names the host."""
    closed = config.model_copy(update={"endpoint": "http://127.0.0.1:1"})
    async with open_account(LocalAccount(hub), closed, None) as provider:
        with pytest.raises(TransientProviderError, match=r"EC2 at 127\.0\.0\.1:1: DescribeAddresses for 198"):
            await provider.describe([ADDRESS])


# --- credentials -----------------------------------------------------------------------------------------


async def test_a_refused_credential_is_read_once_more(aws: FakeAws, hub: LocalHub, provider: ElasticIps) -> None:
    """After a 401 the credential is read again and the request repeated once; then the error is terminal."""
    aws.fail("unauthorized", times=None)

    with pytest.raises(TerminalProviderError, match="renew the account's credential"):
        await provider.describe([ADDRESS])

    assert [served.status for served in aws.requests] == [401, 401]
    aws.heal()
    assert ADDRESS in await provider.describe([ADDRESS])


async def test_a_rotated_credential_is_used(aws: FakeAws, hub: LocalHub, provider: ElasticIps) -> None:
    """A credential that was rotated is used with the next request, without an error."""
    await provider.describe([ADDRESS])
    aws.keys = {"AKIDROTATED": "another/secret"}
    hub.secrets |= {"ID": "AKIDROTATED\n", "SECRET": "another/secret\n"}

    await provider.describe([ADDRESS])

    assert [served.status for served in aws.requests] == [200, 200]


async def test_a_wrong_secret_is_refused(aws: FakeAws, hub: LocalHub, provider: ElasticIps) -> None:
    """A request that is signed with a wrong secret is refused by the fake, and the secret is not in the error."""
    hub.secrets["SECRET"] = "wrong/secret"

    with pytest.raises(TerminalProviderError) as caught:
        await provider.describe([ADDRESS])

    assert "wrong/secret" not in str(caught.value)


async def test_a_missing_credential_is_named(hub: LocalHub, provider: ElasticIps, aws: FakeAws) -> None:
    """A reference that leads to nothing raises the hub's own error, and no request is sent."""
    del hub.secrets["SECRET"]

    with pytest.raises(CredentialError, match="SECRET"):
        await provider.describe([ADDRESS])

    assert aws.requests == []


@pytest.mark.parametrize("key", ["", "A B", "AKID\r\nX-Evil: 1", "AKIDÄ", "A/20260101/x"])
async def test_a_key_id_that_is_none_is_not_sent(key: str, hub: LocalHub, provider: ElasticIps, aws: FakeAws) -> None:
    """A text that cannot be an access key's id becomes no header; the error does not show it."""
    hub.secrets["ID"] = key

    with pytest.raises(TerminalProviderError, match="accessKeyId refers to something") as caught:
        await provider.describe([ADDRESS])

    assert aws.requests == []
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("fault", ["error", "unauthorized", "throttled", "garbage", "lost-answer"])
async def test_errors_show_no_credential(fault: str, attach: Order, aws: FakeAws, provider: ElasticIps) -> None:
    """No error shows the key pair, even if EC2's text repeats the Authorization header."""
    aws.fail(fault, times=2, on="write")

    with pytest.raises(ProviderError) as caught:
        await provider.attach(attach)

    chain: BaseException | None = caught.value
    while chain is not None:
        assert ACCESS_KEY not in repr(chain)
        assert SECRET_KEY not in repr(chain)
        chain = chain.__cause__ or chain.__context__


# --- waiting ---------------------------------------------------------------------------------------------


class _Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a provider does not sleep, not even {seconds} s")


async def test_no_request_is_sent_before_retry_after(aws: FakeAws, config: AwsConfig) -> None:
    """After a throttled request with Retry-After, no request of the account is sent until the time has passed."""
    clock = _Clock()
    secrets = {"ID": ACCESS_KEY, "SECRET": SECRET_KEY}
    async with (
        LocalHub(secrets=secrets, allow_api_hosts=frozenset({"127.0.0.1"}), clock=clock) as hub,
        open_account(LocalAccount(hub), config, None) as provider,
    ):
        aws.refuse(503, "RequestLimitExceeded", headers={"Retry-After": "20"})
        with pytest.raises(QuotaExceeded) as caught:
            await provider.describe([ADDRESS])
        clock.time += 19.5
        with pytest.raises(QuotaExceeded, match="not sent") as early:
            await provider.inspect(["i-12345678"])
        sent = len(aws.requests)
        clock.time += 0.5
        await provider.describe([ADDRESS])

    assert (caught.value.retry_after, early.value.retry_after) == (20.0, 0.5)
    assert (sent, len(aws.requests)) == (1, 2)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("99999", 3600.0), ("9" * 400, 3600.0), ("soon", None), ("-1", None), ("²", None)],
)
async def test_retry_after_is_read_with_care(
    value: str, seconds: float | None, aws: FakeAws, provider: ElasticIps
) -> None:
    """Retry-After is at most an hour; anything but a number leaves the wait to the hub."""
    aws.refuse(503, "RequestLimitExceeded", headers={"Retry-After": value})

    with pytest.raises(QuotaExceeded) as caught:
        await provider.describe([ADDRESS])

    assert caught.value.retry_after == seconds
