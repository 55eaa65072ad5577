"""Copies that Services ask for by annotation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.model import LOCAL, Finding, Service, TargetKey
from hub.registry.copies.annotations import (
    ENABLED,
    NAME,
    NAMESPACE,
    Copies,
    CopyRequest,
    allowed,
    copies,
    copy_request,
    merge,
)
from hub.registry.copies.following import Copying
from hub.registry.spec import (
    AnnotationPolicy,
    ClusterSpec,
    CopyRule,
    GuardPolicy,
    ProviderRef,
    Registry,
    SourceSpec,
    TargetSpec,
)
from tests.support import build

ANYBODY = (CopyRule("*/*", ("*/*",)),)


def key(name: str, namespace: str = "edge") -> TargetKey:
    """The key of the Service ``edge/NAME``."""
    return TargetKey(namespace, name)


def registry(*targets: TargetSpec, rules: tuple[CopyRule, ...] = ANYBODY, enabled: bool = True) -> Registry:
    """A registry with these entries and rules."""
    policy = AnnotationPolicy(
        enabled=enabled, allow=rules, source=SourceSpec(LOCAL, ProviderRef(""), guard=GuardPolicy(empty_results=7))
    )
    clusters = {LOCAL: ClusterSpec(LOCAL, None)}
    return Registry("default", clusters, {target.key: target for target in targets}, annotations=policy)


def entry(name: str, *sources: str) -> TargetSpec:
    """A registry entry that copies other Services."""
    configs = [json.dumps({"name": source, "namespace": "edge"}) for source in sources]
    return TargetSpec(key(name), tuple(SourceSpec(LOCAL, ProviderRef("service-copy", config)) for config in configs))


def asks(name: str | None, namespace: str | None = None, enabled: str = "true") -> CopyRequest:
    """The copy annotations of a Service."""
    return CopyRequest(enabled, name, namespace)


def reasons(found: Copies) -> dict[str, str]:
    """Service -> reason of its finding."""
    return {service.name: note.reason for service, note in found.notes.items()}


def test_a_copy_is_a_target_like_those_of_the_registry() -> None:
    """A copy is a target with one local source and the file's defaults, and adopts endpoint-copier's slices."""
    found = copies({key("vip"): asks("kubernetes", "default")}, registry())
    spec = found.targets[key("vip")]
    (source,) = spec.sources
    assert (source.cluster, source.provider.name) == (LOCAL, "service-copy")
    assert json.loads(source.provider.config) == {"namespace": "default", "name": "kubernetes"}
    assert source.guard == GuardPolicy(empty_results=7)
    assert spec.adopt == "endpoint-copier"
    assert found.notes == {}


def test_two_copies_of_one_source_share_it() -> None:
    """Two copies of the same Service have equal sources."""
    found = copies({key("a"): asks("web"), key("b"): asks("web", "edge")}, registry())
    assert found.targets[key("a")].sources == found.targets[key("b")].sources


def test_annotations_are_ignored_without_the_block() -> None:
    """Without ``annotations:`` in the registry, annotations have no effect and no findings."""
    assert copies({key("a"): asks("web")}, registry(enabled=False)) == Copies()


@pytest.mark.parametrize("value", ["True", "TRUE", "1", "yes", "", " true"])
def test_only_the_text_true_requests_a_copy(value: str) -> None:
    """Only the exact text ``true`` asks for a copy, as in endpoint-copier; the finding quotes other values."""
    found = copies({key("a"): asks("web", enabled=value)}, registry())
    assert (reasons(found), found.targets) == ({"a": "AnnotationIgnored"}, {})
    assert repr(value) in found.notes[key("a")].message


def test_value_false_has_no_finding() -> None:
    """The value ``false`` has no finding."""
    assert copies({key("a"): asks("web", enabled="false")}, registry()) == Copies()


@pytest.mark.parametrize(
    ("wanted", "culprit"),
    [
        (asks(None), NAME),
        (asks(""), NAME),
        (asks("no such name"), NAME),
        (asks("a,b=c"), NAME),
        (asks("web", "UPPER"), NAMESPACE),
        (asks("w" * 64), NAME),
    ],
)
def test_invalid_source_name_is_reported(wanted: CopyRequest, culprit: str) -> None:
    """For a missing, empty or invalid source the finding names the annotation."""
    found = copies({key("a"): wanted}, registry())
    assert (reasons(found), found.targets) == ({"a": "CopyInvalid"}, {})
    assert culprit in found.notes[key("a")].message


def test_finding_about_a_source_quotes_it() -> None:
    """The finding names the annotation and quotes the start of its value."""

    def message(name: str | None) -> str:
        return copies({key("a"): asks(name)}, registry()).notes[key("a")].message

    assert message(None) == f"{NAME} is missing: what is to be copied?"
    assert message("") == f"{NAME} is empty: what is to be copied?"
    assert message("A" * 64) == f"{NAME} is '{'A' * 64}', which is no name"
    assert message("A" * 65) == f"{NAME} is '{'A' * 63}…', which is no name"


@pytest.mark.parametrize("namespace", [None, ""])
def test_missing_namespace_means_the_services_namespace(namespace: str | None) -> None:
    """A missing namespace means the Service's own, not all namespaces as in endpoint-copier."""
    found = copies({key("a"): asks("web", namespace)}, registry())
    assert json.loads(found.targets[key("a")].sources[0].provider.config)["namespace"] == "edge"


@pytest.mark.parametrize(
    ("rules", "source", "target", "may"),
    [
        ((), "edge/web", "edge/a", True),
        ((), "default/kubernetes", "edge/a", False),
        ((CopyRule("default/kubernetes", ("default/vip",)),), "default/kubernetes", "default/vip", True),
        ((CopyRule("default/kubernetes", ("default/vip",)),), "default/kubernetes", "default/vip-2", False),
        ((CopyRule("default/kubernetes", ("default/vip",)),), "edge/web", "edge/a", False),
        ((CopyRule("team-a/*", ("edge/team-a-*",)),), "team-a/web", "edge/team-a-web", True),
        ((CopyRule("team-a/*", ("edge/team-a-*",)),), "team-ab/web", "edge/team-a-web", False),
        ((CopyRule("team-a/*", ("edge/team-a-*",)),), "team-a/web", "edge/team-b", False),
        ((CopyRule("*/web", ("x/y", "edge/*")),), "team-b/web", "edge/b", True),
        ((CopyRule("t*m-*/a*a", ("edge/*",)),), "team-b/aa", "edge/b", True),
        ((CopyRule("t*m-*/a*a", ("edge/*",)),), "team-b/a", "edge/b", False),
    ],
)
def test_source_and_target_must_match_one_rule(
    rules: tuple[CopyRule, ...], source: str, target: str, may: bool
) -> None:
    """Source and target must match the same rule; without rules, copies within a namespace are allowed."""
    policy = AnnotationPolicy(enabled=True, allow=rules)
    assert allowed(TargetKey(*source.split("/")), TargetKey(*target.split("/")), policy) is may


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("web", "web", True),
        ("web", "webs", False),
        ("w*", "w", True),
        ("w*b", "wb", True),
        ("w*b", "w-b", True),
        ("w*b", "w", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("*x*", "axb", True),
        ("*x*", "ab", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a*b*b", "ab", False),
        ("a*bc*bd", "a-bc-bd", True),
        ("a*bc*bd", "a-bd-bc-bd", True),
        ("*x*y*", "y-x", False),
        ("*xx*x*", "xx", False),
    ],
)
def test_star_stands_for_any_characters(pattern: str, name: str, *, matches: bool) -> None:
    """A ``*`` stands for any run of characters, also none; the parts between must not overlap."""
    policy = AnnotationPolicy(enabled=True, allow=(CopyRule(f"n/{pattern}", ("*/*",)),))
    assert allowed(TargetKey("n", name), key("x"), policy) is matches


def test_many_stars_cost_no_time() -> None:
    """A pattern with many stars is matched quickly."""
    policy = AnnotationPolicy(enabled=True, allow=(CopyRule("*/" + "*a*" * 20 + "c", ("*/*",)),))
    assert not allowed(TargetKey("b", "a" * 63), key("x"), policy)
    assert allowed(TargetKey("b", "a" * 62 + "c"), key("x"), policy)


def test_a_copy_without_leave_is_refused() -> None:
    """The finding for a copy that is not allowed has the rule that would allow it."""
    found = copies({key("a"): asks("kubernetes", "default")}, registry(rules=()))
    note = found.notes[key("a")]
    assert (note.reason, found.targets) == ("CopyNotAllowed", {})
    assert "{from: default/kubernetes, to: [edge/a]}" in note.message


def test_the_registry_wins() -> None:
    """The annotations of a Service with a registry entry are ignored."""
    found = copies({key("a"): asks("web")}, registry(entry("a", "other")))
    assert (reasons(found), found.targets) == ({"a": "AnnotationIgnored"}, {})


def test_a_chain_is_fine() -> None:
    """A copy of a copy of a copy is allowed."""
    requests = {key(name): asks(source) for name, source in (("a", "b"), ("b", "c"), ("c", "web"))}
    assert copies(requests, registry()).targets.keys() == requests.keys()


def test_copy_of_the_same_service_is_refused() -> None:
    """A Service that copies itself is refused."""
    found = copies({key("a"): asks("a")}, registry())
    assert found.looping == {key("a"): "edge/a copies itself"}
    assert reasons(found) == {"a": "CopyLoop"}


def test_only_copies_in_a_loop_are_refused() -> None:
    """Only the copies in a loop are refused, the registry's own included; copies of these copies are not."""
    requests = {key("a"): asks("b"), key("b"): asks("c"), key("d"): asks("a"), key("e"): asks("web")}
    found = copies(requests, registry(entry("c", "web", "a")))
    assert found.looping.keys() == {key("a"), key("b"), key("c")}
    assert "edge/a copies edge/b copies edge/c copies edge/a" in found.looping[key("a")]
    assert found.targets.keys() == {key("d"), key("e")}
    merged = merge(registry(entry("c", "web", "a")), found)
    assert merged.targets.keys() == {key("d"), key("e")}
    assert merged.broken_targets.keys() == {key("a"), key("b"), key("c")}


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdefg"), max_size=6))
def test_copy_loops_exactly_if_its_sources_lead_back(edges: Mapping[str, str]) -> None:
    """A copy counts as looping exactly if following the sources leads back to it."""

    def returns(start: str) -> bool:
        seen, now = set(), start
        while now in edges and now not in seen:
            seen.add(now)
            now = edges[now]
        return now == start and bool(seen)

    found = copies({key(name): asks(source) for name, source in edges.items()}, registry())
    assert {target.name for target in found.looping} == {name for name in edges if returns(name)}


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (2, "c0 copies c1 copies c0"),
        (9, "c0 copies c1 copies c2 copies c3 copies c4 copies c5 copies c6 copies c7 copies c8 copies c0"),
        (
            12,
            f"{' copies '.join(f'c{number}' for number in range(10))} copies … copies c0",
        ),
    ],
)
def test_long_loop_is_shown_in_part(length: int, text: str) -> None:
    """The text for a loop names up to ten Services, and the Service where the loop ends."""
    requests = {key(f"c{number}"): asks(f"c{(number + 1) % length}") for number in range(length)}

    found = copies(requests, registry()).looping[key("c0")]

    assert found.replace("edge/", "") == f"copies go round in a loop: {text}"


@pytest.mark.parametrize(
    "found",
    [
        {"targets": {key("b"): entry("b", "web")}},
        {"looping": {key("a"): "loop"}},
        {"notes": {key("b"): Finding("CopyInvalid", "x")}},
        {"withdrawn": frozenset({key("b")})},
    ],
)
def test_each_part_of_the_copies_is_merged(found: dict[str, Any]) -> None:
    """Copies, loops, findings and withdrawn Services are added to the registry, each without the others."""
    plain = registry(entry("a", "web"))
    withdrawn = found.pop("withdrawn", frozenset())
    targets = {**plain.targets, **found.get("targets", {})}

    merged = merge(plain, Copies(**found), withdrawn)

    assert merged.targets == {name: spec for name, spec in targets.items() if name not in found.get("looping", {})}
    assert (merged.broken_targets, merged.notes) == (found.get("looping", {}), found.get("notes", {}))
    assert (merged.withdrawn, merged.clusters) == (withdrawn, plain.clusters)


def test_registry_without_copies_is_the_same_object() -> None:
    """Without copies the merged registry is the same object."""
    plain = registry(entry("a", "web"))
    assert merge(plain, copies({}, plain)) is plain


def test_a_service_that_is_being_deleted_asks_for_nothing() -> None:
    """A Service that is being deleted, lacks the annotation or does not exist asks for no copy."""
    said = {ENABLED: "true", NAME: "web"}
    assert copy_request(build.service(annotations=said)) == asks("web")
    assert copy_request(build.service(annotations=said, deleting=True)) is None
    assert copy_request(build.service(annotations={NAME: "web"})) is None
    assert copy_request(None) is None


# --- over time -------------------------------------------------------------------------------------------


def asking(name: str, **more: str) -> Service:
    """A Service that asks for a copy of ``web``."""
    return build.service(name, annotations={ENABLED: "true", NAME: "web"} | more)


def test_only_changed_copy_annotations_count_as_a_change() -> None:
    """Only a change of the copy annotations counts as a change."""
    copying = Copying(lambda: ())
    assert copying.note(key("a"), asking("a"))
    assert not copying.note(key("a"), asking("a", team="x"))
    assert copying.note(key("a"), None)
    assert not copying.note(key("a"), None)


def test_the_same_wishes_give_the_same_registry() -> None:
    """Unchanged annotations give the same registry object."""
    copying, file = Copying(lambda: ()), registry()
    copying.note(key("a"), asking("a"))
    first = copying.merged(file)
    assert copying.merged(file) is first

    copying.note(key("b"), asking("b"))
    assert copying.merged(file).targets.keys() == {key("a"), key("b")}
    other = registry(entry("c", "web"))
    assert copying.merged(other).targets.keys() == {key("a"), key("b"), key("c")}


def test_withdrawn_copy_is_remembered_while_slices_remain() -> None:
    """A Service that no longer asks for a copy is withdrawn until its slices are gone."""
    published = [key("a")]
    copying, file = Copying(lambda: published), registry()
    copying.note(key("a"), asking("a"))
    assert copying.merged(file).targets.keys() == {key("a")}
    copying.note(key("a"), None)
    assert copying.merged(file).withdrawn == {key("a")}
    assert copying.merged(file).withdrawn == {key("a")}
    published.clear()
    assert copying.merged(file).withdrawn == frozenset()


@pytest.mark.parametrize("listed", [False, True])
def test_service_that_is_published_again_is_no_longer_withdrawn(*, listed: bool) -> None:
    """A Service is no longer withdrawn once it asks for a copy again, or the registry has an entry for it."""
    copying, file = Copying(lambda: [key("a")]), registry()
    copying.note(key("a"), asking("a"))
    copying.merged(file)
    copying.note(key("a"), None)
    assert copying.merged(file).withdrawn == {key("a")}
    if listed:
        file = registry(entry("a", "web"))
    else:
        copying.note(key("a"), asking("a"))
    assert copying.merged(file).withdrawn == frozenset()


def test_leave_taken_back_is_the_files_doing() -> None:
    """A copy that the registry no longer allows does not count as withdrawn."""
    copying = Copying(lambda: [key("a")])
    copying.note(key("a"), asking("a"))
    copying.merged(registry())
    assert copying.merged(registry(rules=(CopyRule("x/*", ("x/*",)),))).withdrawn == frozenset()
    assert copying.merged(registry(enabled=False)).withdrawn == frozenset()
