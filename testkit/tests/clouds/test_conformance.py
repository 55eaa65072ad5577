"""The package that ``hub plugin new --cloud`` writes passes the rules for clouds, and each planted fault is found."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hub_testkit.clouds import conformance
from hub_testkit.clouds.conformance import CloudConformance

from hub.cli.plugin import package

NUMBERS = itertools.count(1)


class Planted(NamedTuple):
    """A fault in the generated package.

    Attributes:
        rule: the rule that must find it.
        says: a part of the rule's message.
        file: the file that is changed.
        place: what is replaced.
        into: what it is replaced with.
        also: further changes: file, place, into.
    """

    rule: int
    says: str
    file: str
    place: str
    into: str
    also: tuple[tuple[str, str, str], ...] = ()


PLANTED = {
    "an error is an empty list": Planted(
        1, "answered", "api",
        "        if status >= 500 or method",
        "        if status >= 500 and method == 'GET':\n            return b'{\"items\": [], \"next\": \"\"}'\n"
        "        if status >= 500 or method",
    ),
    "a lost answer is an empty list": Planted(
        1, "answered", "api",
        "            raise lost(f\"{what} has no",
        "            if method == 'GET':\n                return b'{\"items\": [], \"next\": \"\"}'\n"
        "            raise lost(f\"{what} has no",
    ),
    "drops the second page": Planted(
        2, "after the fault 'lost-page'", "api",
        "            body = await self._send(\"GET\", path, params={\"page\": page})",
        "            try:\n                body = await self._send(\"GET\", path, params={\"page\": page})\n"
        "            except TransientProviderError:\n"
        "                if page != '1':\n                    return found\n                raise",
    ),
    "an object without items is an empty list": Planted(
        3, "after the fault 'no-key'", "api",
        "    items: msgspec.Raw\n    next: str\n",
        "    items: msgspec.Raw = msgspec.Raw(b'[]')\n    next: str = ''\n",
    ),
    "garbage is an empty list": Planted(
        3, "after the fault 'garbage'", "api",
        "            except msgspec.DecodeError as error:\n",
        "            except msgspec.DecodeError as error:\n                if body.startswith(b'<'):\n"
        "                    return found\n",
    ),
    "answers by the index": Planted(
        4, "asked for", "cloud",
        "            machine = by_id.get(match[\"id\"]) if match else by_name.get(node.name)",
        "            machine = by_id.get(match[\"id\"]) if match and len(nodes) > 1 else by_name.get(node.name)\n"
        "            machine = machine or (machines[len(found)] if len(nodes) == 1 else None)",
    ),
    "a machine that is gone is unknown to nobody": Planted(
        4, "does not exist", "cloud",
        "            found[node.name] = _instance(machine) if machine else Absent(",
        "            if machine is None:\n                continue\n"
        "            found[node.name] = _instance(machine) or Absent(",
    ),
    "a clock in the plan": Planted(
        5, "differs the second time", "cloud",
        "    named = {\"name\"",
        "    import time\n\n    want = msgspec.structs.replace(want, settings={\"policy\": str(time.monotonic_ns())})\n"
        "    named = {\"name\"",
    ),
    "a set's order in the plan": Planted(
        5, "is there a set?", "cloud",
        "    machines = sorted(",
        "    machines = _as_in_a_set(",
    ),
    "a file is read in the plan": Planted(
        5, "did I/O", "cloud",
        "    address, balancer = _ours(seen, record)\n    if want.nodes_only",
        "    open('/etc/hostname').close()\n    address, balancer = _ours(seen, record)\n    if want.nodes_only",
    ),
    "a field flips for ever": Planted(
        6, "still something to do", "cloud",
        "    if changes:\n",
        "    changes[\"policy\"] = \"random\" if balancer.policy == POLICY else POLICY\n    if changes:\n",
    ),
    "says nowhere": Planted(
        6, "ingress", "cloud",
        "        return (Ingress(ip=address.ip),)",
        "        return ()",
    ),
    "a second POST": Planted(
        7, "planned again", "cloud",
        "                addresses.setdefault(made.id, made)",
        "                pass",
    ),
    "a step applied twice is not once": Planted(
        7, "gives another plan", "cloud",
        "                balancers[made.id] = made\n",
        "                again = balancers[made.id] == made\n"
        "                balancers[made.id] = msgspec.structs.replace(made, policy=\"\") if again else made\n",
    ),
    "looks only into the record": Planted(
        8, "there is still something to do", "cloud",
        "if each.name in names and not _others(each, record.marker)]",
        "if each.id == record.ids.get(kind)]",
    ),
    "the cloud's order counts": Planted(
        9, "in another order", "cloud",
        "            return sorted(has) == sorted(msgspec.convert(wanted, list[api.Listener]))",
        "            return bool(list(has) == msgspec.convert(wanted, list[api.Listener]))",
    ),
    "the cloud's order of machines counts": Planted(
        9, "in another order", "cloud",
        "            return bool(sorted(has) == wanted)",
        "            return bool(list(has) == wanted)",
    ),
    "sends no machines": Planted(
        10, "the balancer was changed", "cloud",
        "    if machines:\n        body",
        "    if machines or not want.nodes:\n        body",
    ),
    "two writes": Planted(
        11, "instead of one write", "cloud",
        "        if step.destroys:\n            return Done()\n        kind",
        "        if step.kind == \"change-balancer\":\n"
        "            await self._api.write(request[\"method\"], request[\"path\"], request.get(\"body\"))\n"
        "        if step.destroys:\n            return Done()\n        kind",
    ),
    "writes while it observes": Planted(
        11, "'DELETE /balancers/none'", "cloud",
        "        del wanted\n",
        "        del wanted\n        await self._api.write(\"DELETE\", \"balancers/none\")\n",
    ),
    "a deletion names no id": Planted(
        11, "names no id", "cloud",
        "    request = {\"method\": \"DELETE\", \"path\": path}",
        "    request = {\"method\": \"DELETE\", \"path\": path.encode().hex()}",
        (
            ("cloud", "request[\"method\"], request[\"path\"], ", "request[\"method\"], _path(step), "),
            ("cloud", "step.request[\"path\"].rpartition", "_path(step).rpartition"),
        ),
    ),
    "a prefix of a name is ours": Planted(
        12, "is not ours", "cloud",
        "if each.name in names and not",
        "if each.name.startswith(tuple(names)) and not",
    ),
    "leaves the address": Planted(
        12, "left after the deletion with the record", "cloud",
        "    if address is not None:\n        yield _delete(",
        "    if address is not None and balancer is not None and not record.ids:\n        yield _delete(",
    ),
    "leaves what is not in the record": Planted(
        12, "left after the deletion without the record", "cloud",
        "    address, balancer = _ours(seen, record)\n    if balancer is not None:\n        yield _delete(",
        "    address, balancer = _ours(seen, record) if record.ids else (None, None)\n"
        "    if balancer is not None:\n        yield _delete(",
    ),
    "does not look at markers": Planted(
        13, "is not ours", "cloud",
        "    return found is not None and found.cluster != marker.cluster",
        "    return found is None and not marker.cluster",
    ),
    "forgets an annotation that has gone": Planted(
        14, "without the annotations it is", "cloud",
        "    body[\"policy\"] = want.settings.get(\"policy\", POLICY)",
        "    body |= {\"policy\": want.settings[\"policy\"]} if \"policy\" in want.settings else {}",
    ),
    "ignores an annotation": Planted(
        14, "changed nothing", "cloud",
        "    body[\"policy\"] = want.settings.get(\"policy\", POLICY)",
        "    body[\"policy\"] = POLICY",
    ),
    "follows links": Planted(
        15, "connected to an address", "api",
        "            page = parse_qs(",
        "            async with self._hub.http.get(answer.next):\n                pass\n            page = parse_qs(",
    ),
    "a record's id gets into a path": Planted(
        16, "got into a request", "cloud",
        "        yield _delete(\"balancer\", f\"balancers/{balancer.id}\")",
        "        yield _delete(\"balancer\", \"balancers/\" + record.ids.get(\"balancer\", balancer.id))",
        (("api", "        if not PATH.fullmatch(path):", "        if not PATH.match(path):"),),
    ),
    "any provider ID is ours": Planted(
        16, "CloudType.provider_id matches", "cloud",
        "(?P<id>{api.ID})\")",
        "(?P<id>.*)\")",
    ),
    "quotes the cloud": Planted(
        17, "a secret is shown", "api",
        "{self._hub.redact(body.decode('utf-8', 'replace'))}",
        "{body.decode('utf-8', 'replace')}",
    ),
    "logs the credential": Planted(
        17, "a secret is shown", "api",
        "        url = f\"{self._url}/{path}\"\n",
        "        url = f\"{self._url}/{path}\"\n        self._hub.logger.debug('calling with %s', headers)\n",
    ),
    "clings": Planted(
        18, "still ran", "cloud",
        "        del wanted\n        addresses = await self._api.list(\"addresses\", Address)\n",
        "        del wanted\n        import asyncio\n\n        try:\n"
        "            addresses = await self._api.list(\"addresses\", Address)\n"
        "        except asyncio.CancelledError:\n            await asyncio.sleep(2)\n            raise\n",
    ),
    "blocks the loop": Planted(
        18, "the event loop was blocked", "cloud",
        "        del wanted\n",
        "        del wanted\n        import time\n\n        time.sleep(0.2)\n",
    ),
    "a lost answer is Transient": Planted(
        19, "TransientProviderError instead of Uncertain", "api",
        "        lost = TransientProviderError if method == \"GET\" else Uncertain",
        "        lost = TransientProviderError",
    ),
    "sends a creation again": Planted(
        19, "sent it again", "api",
        "        except (aiohttp.ClientError, TimeoutError) as error:\n",
        "        except (aiohttp.ClientError, TimeoutError) as error:\n            if method == \"POST\":\n"
        "                await self._again(path, **more)\n",
    ),
}  # fmt: skip
HELPERS = {
    "cloud": """

def _as_in_a_set(found: Iterator[Any]) -> list[Any]:
    return list(set(found))


def _path(step: Step) -> str:
    path: str = step.request["path"]
    return bytes.fromhex(path).decode() if step.destroys else path
""",
    "api": """
    async def _again(self, path: str, **more: Any) -> None:
        headers = {"Authorization": f"Bearer {await self._token.get()}"}
        try:
            async with self._hub.http.post(f"{self._url}/{path}", headers=headers, **more):
                pass
        except aiohttp.ClientError as error:
            raise Uncertain("no answer") from error
""",
}
"""What planted faults call."""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CloudConformance]]:
    """Builds the suite of a generated package, with a planted fault."""
    modules = set(sys.modules)

    def made(fault: Planted | None = None) -> CloudConformance:
        name = f"kit{next(NUMBERS)}"
        files = package(name, "cloud")
        if fault is not None:
            for file, place, into in ((fault.file, fault.place, fault.into), *fault.also):
                path = f"src/hub_provider_{name}/{file}.py"
                assert files[path].count(place) == 1, f"{place!r} is {files[path].count(place)} times in {path}"
                files[path] = files[path].replace(place, into) + HELPERS.get(file, "")
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        for folder in ("src", "tests"):
            monkeypatch.syspath_prepend(str(tmp_path / folder))
        suite: CloudConformance = importlib.import_module(f"test_{name}").TestConformance()
        return suite

    yield made
    for module in set(sys.modules) - modules:
        del sys.modules[module]


def rules() -> list[str]:
    """The names of all rules."""
    return sorted(name for name, _ in inspect.getmembers(CloudConformance) if name.startswith("test_"))


@pytest.mark.parametrize("rule", rules())
def test_the_generated_package_passes(build: Callable[..., CloudConformance], rule: str) -> None:
    """Every rule, on the cloud that ``hub plugin new --cloud`` writes."""
    suite = build()
    getattr(suite, rule)()
    assert suite.settings, "rule 14 needs an annotation"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(
    build: Callable[..., CloudConformance], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule for it fails, and says why."""
    fault = PLANTED[name]
    monkeypatch.setattr(conformance, "MAX_BLOCK", 0.15 if "blocks" in name else conformance.MAX_BLOCK)
    suite = build(fault)
    [rule] = [rule for rule in rules() if rule.startswith(f"test_{fault.rule:02}_")]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=fault.says.replace("?", r"\?")):
        getattr(suite, rule)()


def test_every_rule_has_a_planted_fault() -> None:
    """There are nineteen rules, numbered from 1."""
    assert [int(name.split("_")[1]) for name in rules()] == list(range(1, 20))
    assert {fault.rule for fault in PLANTED.values()} == set(range(1, 20))
