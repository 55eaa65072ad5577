"""The targets of fuzzing: for each reader of input, a strategy for inputs and a check.

A check processes one input and returns its outcome. It raises assertion errors, and every error except those that the
reader documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz import files, providers, servers
from tests.fuzz.checks import ACCEPTED, REFUSED
from tests.fuzz.mutate import EDITS, as_json, damaged, edited


@dataclass(frozen=True)
class Target:
    """A reader of input.

    Attributes:
        inputs: a strategy for lists of inputs.
        check: processes an input and returns its outcome.
        examples: hypothesis examples in an ordinary run; each has up to ``EDITS`` inputs.
        outcomes: outcomes that must all occur: if all inputs are refused, only the refusal is tested.
    """

    inputs: st.SearchStrategy[list[Any]]
    check: Callable[[Any], str]
    examples: int
    outcomes: frozenset[str] = frozenset({ACCEPTED, REFUSED})


def documents(trees: list[Any], dump: Callable[[Any], bytes] = as_json) -> st.SearchStrategy[list[Any]]:
    """States of documents with damaged structure or bytes."""
    return edited(trees, (dump, as_json)) | damaged([dump(tree) for tree in trees])


def scripts() -> st.SearchStrategy[list[Any]]:
    """Scripts of a watch: good events and damaged ones."""
    good = st.sampled_from([as_json(event) for event in servers.WATCH_LINES])
    bad = documents(servers.WATCH_LINES).map(lambda states: states[-1] if states else b"")
    return st.lists(good | bad, min_size=1, max_size=EDITS).map(lambda script: [script])


TARGETS: Final[Mapping[str, Target]] = {
    "registry": Target(
        edited([files.REGISTRY, files.VIEWS], (files.as_yaml, as_json)) | damaged([files.EXAMPLE]), files.registry, 30
    ),
    "kubeconfig": Target(documents(files.KUBECONFIGS, files.as_yaml), files.kubeconfig, 60),
    "inventory": Target(documents([files.RECORDS, files.RECORDS[:1]]), files.inventory, 120),
    "wire": Target(documents(servers.WIRE), servers.answer, 120),
    # It is decoded in Python, three times: a megabyte of empty fields would take more than a second.
    "protobuf": Target(damaged(servers.MESSAGES, largest=128 << 10), servers.message, 120),
    "http": Target(damaged(servers.RESPONSES), servers.response, 120),
    "reflector": Target(scripts(), servers.reflected, 60),
    "resolutions": Target(st.lists(providers.ANSWERS, min_size=1, max_size=3), providers.resolutions, 80),
    "snapshots": Target(st.lists(providers.SNAPSHOTS, min_size=1, max_size=3), providers.snapshots, 80),
}
