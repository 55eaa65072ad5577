"""Installed plugins are listed without importing, imported one by one, and isolated if broken."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hub.observe.providers.catalog import Catalog, ProviderUnavailable
from tests.unit.observe.providers.plugins import GOOD, Install


def test_catalog_lists_without_importing(install: Install, tmp_path: Path) -> None:
    """Listing returns what is installed and where, without running plugin code."""
    install("quiet", "raise SystemExit('imported')")
    entry = next(entry for entry in Catalog().entries() if entry.name == "quiet")
    assert (entry.distribution, entry.version, entry.state) == ("hub-quiet", "1.2", "unused")
    assert entry.file == str(tmp_path / "plugin_hub_quiet.py")
    assert entry.schema() is None


def test_catalog_imports_only_the_requested_plugin(install: Install) -> None:
    """Loading one plugin does not import the others."""
    install("good")
    install("other", "raise SystemExit('imported')")
    catalog = Catalog()
    assert catalog.load("good").name == "good"
    states = {entry.name: entry.state for entry in catalog.entries()}
    assert (states["good"], states["other"]) == ("ok", "unused")
    assert catalog.load("good") is catalog.load("good")


@pytest.mark.parametrize(
    ("source", "state", "says"),
    [
        ("import no_such_module", "import-failed", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('boom')", "import-failed", "importing plugin_hub_bad failed: RuntimeError: boom"),
        ("raise SystemExit('bye')", "import-failed", "importing plugin_hub_bad failed: SystemExit: bye"),
        ("raise KeyboardInterrupt", "import-failed", "importing plugin_hub_bad failed: KeyboardInterrupt"),
        ("def broken(:", "import-failed", "SyntaxError"),
        ("", "wrong-hook", "implements no hub_register_providers hook (is @hookimpl missing?)"),
        (
            GOOD.replace("@hookimpl\n", ""),
            "wrong-hook",
            "implements no hub_register_providers hook (is @hookimpl missing?)",
        ),
        (GOOD.replace("hub_register_providers", "hub_register_provider"), "wrong-hook", "wrong hook: unknown hook"),
        (
            GOOD.replace("hub_register_providers()", "hub_register_providers(app)"),
            "wrong-hook",
            "wrong hook: Plugin 'bad' for hook",
        ),
        (
            GOOD.replace("return [N", "return 1 / 0 or [N"),
            "wrong-hook",
            "hub_register_providers failed: ZeroDivisionError",
        ),
        (
            GOOD.replace("return [N", "raise SystemExit or [N"),
            "wrong-hook",
            "hub_register_providers failed: SystemExit",
        ),
        (
            GOOD.replace("name=NAME", "name='other'"),
            "wrong-type",
            "called 'bad', but hub_register_providers returned 'other'",
        ),
        (
            GOOD.replace("return [N", "return [] and [N"),
            "wrong-type",
            "called 'bad', but hub_register_providers returned nothing",
        ),
        (GOOD.replace("return [N", "return ['bad'] or [N"), "wrong-type", "returned str, neither NodeProviderType"),
        (
            GOOD.replace("name=NAME,", "name=NAME, api_version=99,"),
            "unsupported-api",
            "written for plugin API 99, this hub supports 1",
        ),
        (
            GOOD.replace("config=NoConfig", "config=dict"),
            "wrong-type",
            "ProviderType.config is neither a pydantic model nor a msgspec struct",
        ),
        (
            GOOD.replace("name=NAME,", "name=NAME, reads=frozenset({'uid'}),"),
            "wrong-type",
            "ProviderType.reads names unknown fields: uid",
        ),
        (
            GOOD.replace("name=NAME,", "name=NAME, poll_interval=-1,"),
            "wrong-type",
            "poll_interval is neither positive seconds",
        ),
        (GOOD.replace("open=open_provider", "open=None"), "wrong-type", "ProviderType.open is not callable"),
    ],
)
def test_a_broken_plugin_is_reported_by_name(install: Install, source: str, state: str, says: str) -> None:
    """The error names the plugin, its distribution and the reason; other plugins still load."""
    install("bad", source)
    install("good")
    catalog = Catalog()
    with pytest.raises(ProviderUnavailable) as caught:
        catalog.load("bad")
    assert str(caught.value).startswith("provider 'bad': hub-bad 1.2: ")
    assert says in str(caught.value)
    assert caught.value.name == "bad"
    entry = next(entry for entry in catalog.entries() if entry.name == "bad")
    assert (entry.state, entry.error) == (state, str(caught.value))
    assert catalog.load("good").name == "good"


def test_a_stalling_plugin_is_given_up_and_taken_when_it_ends(install: Install) -> None:
    """An import beyond its deadline is an error, but its result is used once it ends."""
    install("slow", f"import time; time.sleep(0.5)\n{GOOD}")
    catalog = Catalog(deadline=0.1)
    with pytest.raises(ProviderUnavailable, match=r"importing plugin_hub_slow did not end within 0\.1 s"):
        catalog.load("slow")
    assert next(entry.state for entry in catalog.entries() if entry.name == "slow") == "import-stalled"
    time.sleep(0.7)
    assert catalog.load("slow").name == "slow"


async def test_loading_does_not_block_the_event_loop(install: Install) -> None:
    """While one plugin is imported, the event loop runs and other plugins load."""
    install("slow", f"import time; time.sleep(3)\n{GOOD}")
    install("good")
    catalog = Catalog()
    slow = asyncio.create_task(catalog.load_async("slow"))
    async with asyncio.timeout(2.5):
        assert (await catalog.load_async("good")).name == "good"
    assert not slow.done()
    assert (await slow).name == "slow"


async def test_loading_in_the_event_loop_keeps_the_deadline(install: Install) -> None:
    """An import that does not end is an error after the deadline, at every call."""
    install("stuck", f"import time; time.sleep(1)\n{GOOD}")
    catalog = Catalog(deadline=0.1)
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match="did not end"):
            await catalog.load_async("stuck")


def test_one_name_from_two_distributions_is_an_error(install: Install) -> None:
    """The error names both distributions, and neither is imported."""
    install("twice", "raise SystemExit", dist="first")
    install("twice", "raise SystemExit", dist="second")
    catalog = Catalog()
    with pytest.raises(ProviderUnavailable, match=r"several distributions provide it: first 1\.2, second 1\.2"):
        catalog.load("twice")
    assert [entry.state for entry in catalog.entries() if entry.name == "twice"] == ["name-taken", "name-taken"]


def test_a_missing_provider_comes_with_a_suggestion(install: Install) -> None:
    """For a misspelt name the error suggests the right one, for an unknown name to install it."""
    install("inventory-x")
    with pytest.raises(ProviderUnavailable, match="did you mean inventory-x"):
        Catalog().load("inventoryx")
    with pytest.raises(ProviderUnavailable, match="install it; hub providers lists what is there"):
        Catalog(list).load("ionos")


def test_one_module_may_serve_several_names(install: Install) -> None:
    """Two entry points may name one module; each gets the type with its own name."""
    source = GOOD.replace(
        "return [N", "return [NodeProviderType(name='one', open=open_provider, config=NoConfig), N"
    ).replace("NAME", "'two'")
    install("one", source, dist="both")
    install("two", source, dist="both")
    catalog = Catalog()
    assert (catalog.load("one").name, catalog.load("two").name) == ("one", "two")


def test_an_entry_point_without_readable_metadata_still_lists() -> None:
    """Without readable metadata, the entry has no distribution and errors name the module."""
    catalog = Catalog(lambda: [EntryPoint("lost", "no_such_module_at_all", "hub.providers")])
    with pytest.raises(ProviderUnavailable, match="provider 'lost': no_such_module_at_all: importing"):
        catalog.load("lost")
    assert catalog.entries()[0].distribution == ""


def test_the_built_in_provider_is_installed_and_has_a_schema() -> None:
    """The provider ``node-addresses`` is installed, and its configuration has a schema."""
    catalog = Catalog()
    catalog.load("node-addresses")
    entry = next(entry for entry in catalog.entries() if entry.name == "node-addresses")
    schema = entry.schema()
    assert schema is not None
    assert set(schema["properties"]) == {"types", "families"}
