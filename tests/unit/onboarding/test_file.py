"""A cluster's entry in the file clusters.yaml."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from hub.onboarding.entry import entry
from hub.onboarding.file import Registered
from hub.onboarding.remote import Refused

US = "version: 1\nclusters:\n  - name: us\n    allowedCIDRs: [10.9.0.0/24]\n    provider: {name: node-addresses}\n"
EU = entry("eu", ["10.1.0.0/24"], "node-addresses")
SERVICE = "services:\n  - name: web\n    namespace: edge\n    sources: [{cluster: us}]\n    ports: [{port: 80}]\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A registry with cluster us, whose mode is 0640."""
    file = tmp_path / "clusters.yaml"
    file.write_text(US)
    file.chmod(0o640)
    return file


def read(path: Path, name: str = "eu") -> Registered:
    """The entry of a cluster."""
    return Registered.read(str(path), name)


def test_entry_is_added_and_removed(path: Path) -> None:
    """An added entry is removed again without a trace; a second time there is nothing to do. The mode stays."""
    before = read(path)
    assert (before.exists, before.line) == (False, 0)
    assert (before.remove(), before.add(EU)) == ("absent", "created")
    after = read(path)
    assert (after.exists, after.line) == (True, 6)
    assert (after.text_with_entry(EU), after.add(EU)) == (after.text, "unchanged")
    assert (after.remove(), read(path).text) == ("deleted", US)
    assert path.stat().st_mode & 0o7777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_first_line_is_an_entry(path: Path) -> None:
    """An entry in the first line exists, too."""
    path.write_text("{version: 1, clusters: [{name: eu, kubeconfig: {secret: eu}}]}\n")
    assert read(path).exists


@pytest.mark.parametrize(
    ("kubeconfig", "free"),
    [("{secret: eu}", True), ("{secret: other}", False), ("{path: eu}", False), ("eu", False)],
)
def test_names_of_other_kubeconfigs_are_not_free(path: Path, kubeconfig: str, *, free: bool) -> None:
    """A name is free if its entry reads the Secret of this name; a cluster without an entry is free as well."""
    path.write_text(f"version: 1\nclusters:\n{EU.replace('{secret: eu}', kubeconfig)}")
    read(path, "us").check_free()
    if free:
        read(path).check_free()
        return
    with pytest.raises(Refused) as caught:
        read(path).check_free()
    assert str(caught.value) == (
        f"{path}:3: there is a cluster eu, with another kubeconfig than {{secret: eu}}; "
        "choose another NAME, or write that kubeconfig into its entry"
    )


def test_entry_is_not_removed_while_a_service_needs_it(path: Path) -> None:
    """A change that would break the registry is refused, and the file stays as it is."""
    path.write_text(US + textwrap.indent(EU, "  ") + SERVICE)
    with pytest.raises(Refused, match=r"stays as it is: with that change, .*us.*; fix this, or remove the entry at li"):
        read(path, "us").remove()
    assert read(path, "us").exists
    assert read(path).remove() == "deleted"


def test_problems_that_the_file_already_has_do_not_matter(path: Path) -> None:
    """An entry is added to a file with another, broken entry, but not with a problem of its own."""
    path.write_text(US.replace("10.9.0.0/24", "10.9.0.1/24"))
    assert read(path).add(EU) == "created"
    with pytest.raises(Refused, match="stays as it is: with that change, "):
        read(path, "other").add(entry("other", ["x"], "node-addresses"))


def test_lists_in_flow_style_are_left_to_the_user(path: Path) -> None:
    """A file whose clusters do not have lines of their own is not changed."""
    path.write_text(
        "version: 1\nclusters: [{name: us, allowedCIDRs: [10.9.0.0/24], provider: {name: node-addresses}}]\n"
    )
    message = "clusters is not a list with one entry below the other; "
    with pytest.raises(Refused, match=message):
        read(path).add(EU)
    with pytest.raises(Refused, match=message):
        read(path, "us").remove()


def test_file_that_changed_meanwhile_is_not_written(path: Path) -> None:
    """A file that somebody else changed after it was read is left alone."""
    found = read(path)
    path.write_text(US + "# a comment\n")
    with pytest.raises(Refused, match="changed meanwhile and was not written: run the command again"):
        found.add(EU)
    assert path.read_text() == US + "# a comment\n"


def test_symlink_stays(path: Path) -> None:
    """The file that a symlink leads to is replaced, not the symlink."""
    link = path.parent / "link.yaml"
    link.symlink_to(path.name)
    assert read(link).add(EU) == "created"
    assert link.is_symlink()
    assert "name: eu" in path.read_text()
