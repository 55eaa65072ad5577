"""A cluster's entry is added to clusters.yaml and removed again, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hub.onboarding.entry import UnsupportedLayout, by_name, entry, line_of, with_item, without_item
from hub.onboarding.file import Registered
from hub.onboarding.remote import Refused

ITEM = entry("eu", ["10.1.0.0/16"], "node-addresses")
NAME = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True).filter(lambda name: name != "eu")

REGISTRY = """\
version: 1
clusters:
  - name: us
    allowedCIDRs: [10.2.0.0/16]
    provider: {name: inventory}
"""

TEXTS = {
    "nested": "version: 1\nclusters:\n  - name: a\n    labels:\n      x: y\n",
    "not indented": "clusters:\n- name: a   # why\n- {name: b}\nservices: []\n",
    "flow values": "clusters:\n    - name: a\n      labels: {x: y,\n        z: u}\n\n# what follows\nservices: []\n",
    "block text": "clusters:\n  - name: a\n    note: |\n      two\n      lines\nservices: []\n",
    "no newline": "clusters:\n  - name: a",
    "comments behind": "clusters:\n  - name: a\n  # - name: off\n\nservices: []\n",
}


@pytest.mark.parametrize("name", ["on", "no", "null", "eu"])
def test_a_name_is_read_as_it_was_given(name: str) -> None:
    """A name that YAML would read as another type is quoted in the entry."""
    (read,) = yaml.safe_load(entry(name, ["10.1.0.0/16", "fd00::/64"], "node-addresses"))
    assert (read["name"], read["kubeconfig"]) == (name, {"secret": name})
    assert read["allowedCIDRs"] == ["10.1.0.0/16", "fd00::/64"]


def test_names_are_read_as_the_hub_reads_them(tmp_path: Path) -> None:
    """The file is not read as YAML 1.1: ``no`` may be a name, and a value that looks like a date is text."""
    file = tmp_path / "clusters.yaml"
    provider = "{name: inventory, config: {since: 2026-13-45, sign: =}}"
    file.write_text(
        "version: 1\nclusters:\n"
        f"  - {{name: no, kubeconfig: {{secret: no}}, allowedCIDRs: [10.1.0.0/16], provider: {provider}}}\n"
    )

    found = Registered.read(str(file), "no")

    assert (found.line, found.kubeconfig) == (3, {"secret": "no"})
    found.check_free()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_entry_stands_behind_the_last_one(text: str) -> None:
    """Adding an entry changes no other bytes, and removing it restores the file."""
    new = with_item(text, ITEM)
    assert list(by_name(new)) == [*by_name(text), "eu"]
    assert yaml.safe_load(new) | {"clusters": None} == yaml.safe_load(text) | {"clusters": None}
    assert without_item(new, "eu") == (text if text.endswith("\n") else text + "\n")
    line = new.splitlines()[line_of(new, "eu") - 1]
    assert line.strip() == "- name: eu"


def test_a_registry_without_clusters_gets_the_list() -> None:
    """A file without the key ``clusters`` gets it at the end."""
    assert yaml.safe_load(with_item("version: 1\n", ITEM))["clusters"][0]["name"] == "eu"


@pytest.mark.parametrize(
    "text", ["clusters: []\n", "clusters: [{name: a}]\n", "clusters:\nservices: []\n", "clusters: 3\n"]
)
def test_a_list_that_is_not_one_below_the_other_is_left_to_people(text: str) -> None:
    """An entry is not added to a list in flow style or to another value; the error names the line."""
    with pytest.raises(UnsupportedLayout, match="line 1: clusters is not a list with one entry below the other"):
        with_item(text, ITEM)


@pytest.mark.parametrize(
    "text", ["clusters: [{name: eu}]\n", "clusters:\n  - name: a\n", "clusters:\n  -\n    name: eu\n"]
)
def test_entry_on_shared_lines_is_not_removed(text: str) -> None:
    """An entry that shares its lines with others, or is missing, is not removed."""
    with pytest.raises(UnsupportedLayout):
        without_item(text, "eu")


@given(st.lists(NAME, unique=True, min_size=1, max_size=5), st.integers(0, 6), st.data())
def test_any_cluster_can_be_taken_out_alone(clusters: list[str], indent: int, data: st.DataObject) -> None:
    """Removing a cluster keeps all others in order."""
    body = "".join(f"{' ' * indent}- name: '{name}'\n{' ' * indent}  labels: {{a: b}}\n" for name in clusters)
    text = f"version: 1\nclusters:\n{body}services: []\n"
    chosen = data.draw(st.sampled_from(clusters))
    assert list(by_name(without_item(text, chosen))) == [name for name in clusters if name != chosen]


def test_entry_without_networks_has_a_comment() -> None:
    """An entry without networks has a comment and is valid YAML; IPv6 networks are quoted."""
    assert "required: the networks of its nodes" in entry("eu", [], "ionos")
    assert yaml.safe_load(entry("eu", ["fd00:7::/64"], "ionos"))[0]["allowedCIDRs"] == ["fd00:7::/64"]


def test_changed_file_is_not_overwritten(tmp_path: Path) -> None:
    """A file that has changed since it was read is not overwritten."""
    file = tmp_path / "clusters.yaml"
    file.write_text(REGISTRY)
    first, second = Registered.read(str(file), "eu"), Registered.read(str(file), "ap")
    removing = Registered.read(str(file), "us")
    assert first.add(ITEM) == "created"

    with pytest.raises(Refused, match="changed meanwhile and was not written: run the command again"):
        second.add(entry("ap", ["10.3.0.0/16"], "node-addresses"))
    with pytest.raises(Refused, match="changed meanwhile"):
        removing.remove()

    assert list(by_name(file.read_text())) == ["us", "eu"]
    assert Registered.read(str(file), "us").remove() == "deleted"
    assert list(by_name(file.read_text())) == ["eu"]


def test_the_only_cluster_takes_its_list_along() -> None:
    """Removing the only cluster also removes the key ``clusters``; comments stay, except on the line of the key."""
    assert without_item(with_item("version: 1\n", ITEM), "eu") == "version: 1\n"
    text = "version: 1\nclusters:  # all\n  # in the west\n  - name: eu\n    labels: {a: b}\nservices: []\n"
    assert without_item(text, "eu") == "version: 1\n  # in the west\nservices: []\n"


def test_existing_problems_do_not_prevent_a_removal(tmp_path: Path) -> None:
    """Problems that the file has already do not prevent a removal; a new problem does."""
    file = tmp_path / "clusters.yaml"
    file.write_text(REGISTRY + "  - {name: ap, allowedCIDRs: [nonsense], provider: {name: inventory}}\n")
    assert Registered.read(str(file), "us").remove() == "deleted"
    assert list(by_name(file.read_text())) == ["ap"]

    sources = "[{clusterSelector: {tier: %s}}]"
    services = "".join(
        f"  - {{name: {name}, namespace: edge, sources: {sources % tier}}}\n"
        for name, tier in (("a", "none"), ("b", "gold"))
    )
    file.write_text(REGISTRY.replace("us\n", "us\n    labels: {tier: gold}\n") + f"services:\n{services}")
    with pytest.raises(Refused, match=r"services\[1\].sources\[0\].clusterSelector: selects no cluster"):
        Registered.read(str(file), "us").remove()
