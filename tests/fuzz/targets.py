"""What is fuzzed: for each reader of input, what it is given, and what must hold of what it says.

A check takes one input and returns a word for how it ended. Every error that is not the documented one of that
reader goes through to the caller, as does an assertion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz import files, providers, servers
from tests.fuzz.holds import ACCEPTED, REFUSED
from tests.fuzz.mutate import EDITS, as_json, damaged, edited


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        inputs: a strategy of lists of inputs.
        check: what must hold of one input; gives a word for how it ended.
        examples: hypothesis examples of an ordinary run; each is up to ``EDITS`` inputs.
        outcomes: words that must all have come up: a fuzzer whose inputs are all refused tests the refusal only.
    """

    inputs: st.SearchStrategy[list[Any]]
    check: Callable[[Any], str]
    examples: int
    outcomes: frozenset[str] = frozenset({ACCEPTED, REFUSED})


def documents(trees: list[Any], dump: Callable[[Any], bytes] = as_json) -> st.SearchStrategy[list[Any]]:
    """States of documents, damaged in their structure or in their bytes."""
    return edited(trees, (dump, as_json)) | damaged([dump(tree) for tree in trees])


def scripts() -> st.SearchStrategy[list[Any]]:
    """What a watch says: good events among damaged ones."""
    good = st.sampled_from([as_json(event) for event in servers.SAID])
    bad = documents(servers.SAID).map(lambda states: states[-1] if states else b"")
    return st.lists(good | bad, min_size=1, max_size=EDITS).map(lambda script: [script])


TARGETS: Final[Mapping[str, Target]] = {
    "registry": Target(
        edited([files.REGISTRY, files.VIEWS], (files.as_yaml, as_json)) | damaged([files.EXAMPLE]), files.registry, 30
    ),
    "kubeconfig": Target(documents(files.KUBECONFIGS, files.as_yaml), files.kubeconfig, 60),
    "inventory": Target(documents([files.RECORDS, files.RECORDS[:1]]), files.inventory, 120),
    "wire": Target(documents(servers.WIRE), servers.answer, 120),
    # It is read in Python, three times over in here: a megabyte of empty fields would take the second by itself.
    "protobuf": Target(damaged(servers.MESSAGES, largest=128 << 10), servers.message, 120),
    "http": Target(damaged(servers.RESPONSES), servers.response, 120),
    "reflector": Target(scripts(), servers.reflected, 60),
    "resolutions": Target(st.lists(providers.ANSWERS, min_size=1, max_size=3), providers.resolutions, 80),
    "snapshots": Target(st.lists(providers.SNAPSHOTS, min_size=1, max_size=3), providers.snapshots, 80),
}
