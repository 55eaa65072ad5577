"""Tests of the rules for address providers: each has a provider that breaks this rule and no other."""

from __future__ import annotations

import asyncio
import base64
import inspect
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

import msgspec
import pytest
from hub_testkit.addresses import conformance
from hub_testkit.addresses.cloud import Action, Answer
from hub_testkit.addresses.conformance import AddressProviderConformance
from hub_testkit.addresses.fake import Ability, World
from hub_testkit.addresses.simulated import NAME, Entry, SimulatedCloud, SimulatedPlugin, SimulatedProvider
from hub_testkit.contexts import LocalHub

from hub.plugin import Node, ProviderError, TransientProviderError
from hub.plugin.addresses import (
    AddressState,
    Changing,
    Done,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Order,
    Pending,
    QuotaExceeded,
    Step,
)


def suite(broken: type[SimulatedProvider], cannot: Mapping[Ability, str] | None = None) -> AddressProviderConformance:
    """Builds the suite of a provider, with a cloud that cannot do some things."""
    clouds: dict[str, SimulatedCloud] = {}

    class Suite(AddressProviderConformance):
        plugin = SimulatedPlugin(clouds, provider=broken)
        name = NAME
        foreign_ids = ("simulated://other/z1/n1",)

        @asynccontextmanager
        async def world(self) -> AsyncGenerator[World, None]:
            cloud = clouds["main"] = SimulatedCloud()
            cloud.retry_after = 0.2
            cloud.cannot = cannot or {}
            hub = LocalHub(secrets={"TOKEN": cloud.credential})
            yield World(cloud, {"cloud": "main", "credential": {"env": "TOKEN"}}, hub, (cloud.credential,))

    return Suite()


def rules() -> list[str]:
    """Returns the names of all rules."""
    return sorted(name for name, _ in inspect.getmembers(AddressProviderConformance) if name.startswith("test_"))


def failing(broken: type[SimulatedProvider]) -> dict[str, str]:
    """Returns the rules that a provider breaks, with the suite's messages."""
    failed = {}
    for rule in rules():
        try:
            getattr(suite(broken), rule)()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any error is a broken rule
            failed[rule] = f"{type(error).__name__}: {error}"
    return failed


# --- one provider for each rule ----------------------------------------------------------------


class GarbageIsEmpty(SimulatedProvider):
    async def _call(self, action: Action, **arguments: Any) -> Answer:
        answer = await super()._call(action, **arguments)
        return Answer(200, {"addresses": [], "next": 0}) if isinstance(answer.body, str) else answer


class NoKeyIsGone(SimulatedProvider):
    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        try:
            return await super().inspect(instances)
        except TransientProviderError as error:
            if "missing required field" not in str(error):
                raise
            return dict.fromkeys(instances, Gone("the cloud does not know it"))


class LostPageIsTheEnd(SimulatedProvider):
    async def _entries(self) -> dict[str, Entry]:
        try:
            return await super()._entries()
        except TransientProviderError:
            first: Any = (await self._call("list", page=0)).body
            if "addresses" not in first or not first["next"]:
                raise
            return {entry.address: entry for entry in msgspec.convert(first["addresses"], list[Entry])}


class UnknownIsFree(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        answer = await super().describe(addresses)
        return {key: Free() if isinstance(state, NotReserved) else state for key, state in answer.items()}


class AnswersUnasked(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        return {key: self._state(entry) for key, entry in (await self._entries()).items()}


class DependsOnTheBatch(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        answer = dict(await super().describe(addresses))
        for key, state in answer.items():
            if isinstance(state, Elsewhere):
                answer[key] = Elsewhere(f"{state.what}, seen with {len(addresses)}")
        return answer


class NamesInstancesDifferently(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        answer = dict(await super().describe(addresses))
        for key, state in answer.items():
            if isinstance(state, Held) and len(addresses) > 2:
                answer[key] = msgspec.structs.replace(state, instance=state.instance.upper())
        return answer


class AttachesAgain(SimulatedProvider):
    async def attach(self, order: Order, /) -> Step:
        step = await super().attach(order)
        if isinstance(step, Done) and await self._is_held(order):
            await self._write("attach", order, force=True)
        return step

    async def _is_held(self, order: Order) -> bool:
        state = self._state((await self._entries()).get(order.address))
        return isinstance(state, Held) and state.instance == order.instance


class ForgetsBefore(SimulatedProvider):
    async def attach(self, order: Order, /) -> Step:
        state = self._state((await self._entries()).get(order.address))
        held = isinstance(state, Held) and state.instance == order.instance
        return Done() if held and not order.before.startswith("external") else await super().attach(order)


class DetachesAgain(SimulatedProvider):
    async def detach(self, order: Order, /) -> Step:
        step = await super().detach(order)
        if isinstance(step, Done):
            await self._write("detach", order)
        return step


class DetachesFromAnyone(SimulatedProvider):
    async def detach(self, order: Order, /) -> Step:
        state = self._state((await self._entries()).get(order.address))
        if isinstance(state, Held) and state.instance != order.instance:
            await self._call("detach", address=order.address, token=order.token)
        return await super().detach(order)


class IgnoresExpected(SimulatedProvider):
    async def detach(self, order: Order, /) -> Step:
        state = self._state((await self._entries()).get(order.address))
        return await super().detach(msgspec.structs.replace(order, expected=state))


class AttachesFromAnyone(SimulatedProvider):
    async def attach(self, order: Order, /) -> Step:
        state = self._state((await self._entries()).get(order.address))
        if isinstance(state, Held) and state.instance != order.instance:
            return await self._write("attach", order, force=True)
        return await super().attach(order)


class ReplacesForeignAddresses(SimulatedProvider):
    async def attach(self, order: Order, /) -> Step:
        found = await self._instance(order.instance)
        state = self._state((await self._entries()).get(order.address))
        if found is not None and found.held and isinstance(state, Free):
            return await self._write("attach", order, force=True)
        return await super().attach(order)


class FindsRoom(SimulatedProvider):
    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        answer = await super().inspect(instances)
        return {key: msgspec.structs.replace(state, room=True) for key, state in answer.items()}


class DropsGroups(SimulatedProvider):
    async def attach(self, order: Order, /) -> Step:
        step = await super().attach(order)
        self._cloud.instances[order.instance].extras["groups"] = []
        return step


class DropsGroupsOnDetach(SimulatedProvider):
    async def detach(self, order: Order, /) -> Step:
        step = await super().detach(order)
        self._cloud.instances[order.instance].extras.pop("groups", None)
        return step


class RemembersOperations(SimulatedProvider):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._mine: set[str] = set()

    async def attach(self, order: Order, /) -> Step:
        step = await super().attach(order)
        if isinstance(step, Pending):
            self._mine.add(step.operation)
        return step

    async def follow(self, operation: str, /) -> Step:
        return await super().follow(operation) if operation in self._mine else Done()


class NeverSaysChanging(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        answer = await super().describe(addresses)
        return {key: Free() if isinstance(state, Changing) else state for key, state in answer.items()}


class OverlooksIllEnds(SimulatedProvider):
    async def follow(self, operation: str, /) -> Step:
        try:
            return await super().follow(operation)
        except ProviderError as error:
            if " failed: " not in str(error):
                raise
            return Done()


class IllEndsAreTransient(SimulatedProvider):
    async def follow(self, operation: str, /) -> Step:
        try:
            return await super().follow(operation)
        except ProviderError as error:
            raise TransientProviderError(str(error)) from error


class RepeatsWrites(SimulatedProvider):
    async def _write(self, action: Action, order: Order, *, before: str = "", **more: Any) -> Step:
        try:
            return await super()._write(action, order, before=before, **more)
        except TransientProviderError:
            more |= {"force": True}
            await super()._write(action, msgspec.structs.replace(order, token="another"), before=before, **more)
            raise


class RestoresAnotherTier(SimulatedProvider):
    async def restore(self, order: Order, /) -> Step:
        return await super().restore(msgspec.structs.replace(order, before="external-nat/STANDARD"))


class AcceptsOtherAccounts(SimulatedProvider):
    def instance_of(self, node: Node, /) -> str | None:
        found = re.fullmatch(r"simulated://[a-z]+/(z1/n[0-9]|z1/[a-z]+)", node.provider_id)
        return found[1] if found else None


class AcceptsLineEnds(SimulatedProvider):
    def instance_of(self, node: Node, /) -> str | None:
        return super().instance_of(msgspec.structs.replace(node, provider_id=node.provider_id.removesuffix("\n")))


class NeverReloads(SimulatedProvider):
    async def _send(self, action: Action, arguments: Mapping[str, Any], *, reload: bool = False) -> Answer:
        return Answer(401, {}) if reload else await super()._send(action, arguments)


class ReloadsForEver(SimulatedProvider):
    async def _send(self, action: Action, arguments: Mapping[str, Any], *, reload: bool = False) -> Answer:
        answer = await super()._send(action, arguments, reload=reload)
        return await super()._send(action, arguments, reload=True) if reload and answer.status == 401 else answer


class IgnoresRetryAfter(SimulatedProvider):
    async def _call(self, action: Action, **arguments: Any) -> Answer:
        self._not_before = 0.0
        return await super()._call(action, **arguments)


class QuotaIsTransient(SimulatedProvider):
    async def _call(self, action: Action, **arguments: Any) -> Answer:
        try:
            return await super()._call(action, **arguments)
        except QuotaExceeded as error:
            raise TransientProviderError(str(error), error.retry_after) from error


class Clings(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        try:
            return await super().describe(addresses)
        except asyncio.CancelledError:
            await asyncio.sleep(2 * conformance.LET_GO)
            raise


class Blocks(SimulatedProvider):
    async def attach(self, order: Order, /) -> Step:
        time.sleep(0.2)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().attach(order)


class QuotesCredentials(SimulatedProvider):
    def _quote(self, answer: Answer) -> str:
        return str(answer.body)


class QuotesEncodedCredentials(SimulatedProvider):
    def _quote(self, answer: Answer) -> str:
        return base64.b64encode(self._cloud.credential.encode()).decode()


class QuotesHalfOfCredentials(SimulatedProvider):
    def _quote(self, answer: Answer) -> str:
        return f"with {self._cloud.credential[:10]}…"


class LogsCredentials(SimulatedProvider):
    async def _send(self, action: Action, arguments: Mapping[str, Any], *, reload: bool = False) -> Answer:
        self._hub.logger.debug("calling with %s", await self._secret.get())
        return await super()._send(action, arguments, reload=reload)


class WritesWhileReading(SimulatedProvider):
    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        answer = await super().describe(addresses)
        await self._call("detach", address="no such address")
        return answer


BROKEN: list[tuple[int, type[SimulatedProvider]]] = [
    (1, GarbageIsEmpty),
    (1, NoKeyIsGone),
    (2, LostPageIsTheEnd),
    (3, UnknownIsFree),
    (3, AnswersUnasked),
    (4, DependsOnTheBatch),
    (4, NamesInstancesDifferently),
    (5, AttachesAgain),
    (5, ForgetsBefore),
    (6, DetachesAgain),
    (7, DetachesFromAnyone),
    (7, IgnoresExpected),
    (8, AttachesFromAnyone),
    (9, ReplacesForeignAddresses),
    (9, FindsRoom),
    (10, DropsGroups),
    (10, DropsGroupsOnDetach),
    (11, RemembersOperations),
    (11, NeverSaysChanging),
    (12, OverlooksIllEnds),
    (12, IllEndsAreTransient),
    (13, RepeatsWrites),
    (14, RestoresAnotherTier),
    (15, AcceptsOtherAccounts),
    (15, AcceptsLineEnds),
    (16, NeverReloads),
    (16, ReloadsForEver),
    (17, IgnoresRetryAfter),
    (17, QuotaIsTransient),
    (18, Clings),
    (18, Blocks),
    (19, QuotesCredentials),
    (19, QuotesEncodedCredentials),
    (19, QuotesHalfOfCredentials),
    (19, LogsCredentials),
    (20, WritesWhileReading),
]


@pytest.mark.parametrize(("rule", "broken"), BROKEN, ids=[broken.__name__ for _, broken in BROKEN])
def test_a_broken_provider_breaks_its_rule_and_no_other(
    rule: int, broken: type[SimulatedProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken provider fails the rule that it breaks and no other."""
    monkeypatch.setattr(conformance, "OPERATION", 0.3)
    if broken is Blocks:
        monkeypatch.setattr(conformance, "MAX_BLOCK", 0.15)
    if broken is Clings:
        monkeypatch.setattr(conformance, "LET_GO", 0.3)
    failed = failing(broken)
    assert [int(name.split("_")[1]) for name in failed] == [rule], failed


def test_rules_are_those_of_the_contract() -> None:
    """There are twenty rules, numbered from 1, and each has a provider that breaks it."""
    assert [int(name.split("_")[1]) for name in rules()] == list(range(1, 21))
    assert sorted({rule for rule, _ in BROKEN}) == list(range(1, 21))


@pytest.mark.parametrize(
    ("ability", "rule"),
    [
        ("lost-page", "test_02_a_lost_page_frees_nothing"),
        ("occupy", "test_09_a_foreign_static_address_stays"),
        ("operations", "test_12_an_operation_that_fails_raises"),
        ("restore", "test_14_restore_gives_back_what_there_was"),
        ("unauthorized", "test_16_a_refused_credential_is_reloaded_once"),
    ],
)
def test_a_rule_that_cannot_be_tested_is_skipped_with_the_reason(ability: Ability, rule: str) -> None:
    """A rule that needs what the fake cannot do is skipped, and the skip quotes the fake's reason."""
    with pytest.raises(pytest.skip.Exception, match=f"{ability}: this cloud never does"):
        getattr(suite(SimulatedProvider, {ability: "this cloud never does"}), rule)()


@pytest.mark.parametrize(
    ("cannot", "says"),
    [
        ({"ocupy": "never"}, "cannot has \\['ocupy'\\]; known are"),
        (dict.fromkeys(get_args(Ability), "never"), "which can happen to every cloud"),
        ({"restore": ""}, "does not say why"),
    ],
    ids=["misspelt", "everything", "no reason"],
)
def test_a_fake_cannot_skip_rules_by_mistake(cannot: dict[Ability, str], says: str) -> None:
    """A misspelt ability, one that every cloud has, or one without a reason fails every rule."""
    with pytest.raises(AssertionError, match=says):
        suite(SimulatedProvider, cannot).test_05_attaching_twice_attaches_once()
