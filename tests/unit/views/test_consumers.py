"""Finding and loading consumers, and errors in their hooks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from hub.model import EndpointView
from hub.plugin import hookimpl, views
from hub.plugin.views import VIEWS_ENTRY_POINT_GROUP
from hub.views.consumers import HOOKS, ConsumerUnavailable, describe, load

DOCS = (Path(__file__).parents[3] / "docs" / "plugins" / "index.md").read_text()


def point(name: str, **hooks: object) -> EntryPoint:
    """An entry point for a module in memory with these hooks."""
    module = ModuleType(f"in_memory_views_{name}")
    vars(module).update(hooks)
    sys.modules[module.__name__] = module
    return EntryPoint(name, module.__name__, VIEWS_ENTRY_POINT_GROUP)


@hookimpl
def hub_endpoint_upserted(view: EndpointView) -> None:
    """A valid hook that records the view's name."""
    seen.append(view.name)


seen: list[str] = []


def test_a_consumer_may_implement_some_of_the_hooks() -> None:
    """Hooks that a consumer does not implement do nothing."""
    hooks = load("good", lambda: [point("good", hub_endpoint_upserted=hub_endpoint_upserted)])
    view = EndpointView("local", "edge", "web-1", "web", "ClusterIP", 80, "", 80, "TCP", ("10.0.0.1",))
    hooks.hub_endpoint_upserted(view=view)
    hooks.hub_endpoint_deleted(view=view)
    hooks.hub_endpoints_listed(cluster="local", views=(view,))
    assert seen == ["web-1"]


def test_missing_consumer_error_lists_known_ones() -> None:
    """The error suggests a similar name, or lists the known consumers."""
    points = [point("proxy", hub_endpoint_upserted=hub_endpoint_upserted)]
    with pytest.raises(ConsumerUnavailable, match=r"no installed distribution .* \(did you mean proxy\?\)"):
        load("porxy", lambda: points)
    with pytest.raises(ConsumerUnavailable, match=r"\(known: none\)"):
        load("proxy", list)


def test_two_consumers_of_one_name_are_refused() -> None:
    """The error names the distributions, since the choice would be ambiguous."""
    points = [point("one", hub_endpoint_upserted=hub_endpoint_upserted)] * 2
    with pytest.raises(ConsumerUnavailable, match="uninstall all but one"):
        load("one", lambda: points)


def test_a_misspelt_hook_is_an_error() -> None:
    """A misspelt hook is an error, since it would never be called."""

    @hookimpl
    def hub_endpoint_upsertet(view: EndpointView) -> None:
        """An invalid hook."""

    with pytest.raises(ConsumerUnavailable, match="wrong hook: unknown hook 'hub_endpoint_upsertet'"):
        load("odd", lambda: [point("odd", hub_endpoint_upsertet=hub_endpoint_upsertet)])


def test_a_hook_with_other_parameters_is_an_error() -> None:
    """A hook with unknown parameters is an error, since it could not be called."""

    @hookimpl
    def hub_endpoint_deleted(endpoint: EndpointView) -> None:
        """An invalid hook."""

    with pytest.raises(ConsumerUnavailable, match="wrong hook"):
        load("other", lambda: [point("other", hub_endpoint_deleted=hub_endpoint_deleted)])


def test_a_module_without_hooks_is_an_error() -> None:
    """A module without hooks, such as after a forgotten @hookimpl, is an error."""
    with pytest.raises(ConsumerUnavailable, match="is @hookimpl missing"):
        load("none", lambda: [point("none", hub_endpoint_upserted=lambda view: None)])


@hookimpl
async def hub_endpoint_deleted(view: EndpointView) -> None:
    """An invalid hook: async."""


@hookimpl
async def hub_endpoints_listed(cluster: str, views: Sequence[EndpointView]) -> AsyncIterator[None]:
    """An invalid hook: an async generator."""
    yield


@pytest.mark.parametrize("hook", [hub_endpoint_deleted, hub_endpoints_listed])
def test_an_async_hook_is_an_error(hook: Callable[..., object]) -> None:
    """An async hook would never run, so it is an error that names it and the remedy."""
    found = point("late", hub_endpoint_upserted=hub_endpoint_upserted, **{hook.__name__: hook})
    says = f"^in_memory_views_late/late: {hook.__name__} is async and would never run; make it a plain function"
    with pytest.raises(ConsumerUnavailable, match=says):
        load("late", lambda: [found])


def test_owner_of_a_consumer_without_a_distribution_is_its_module() -> None:
    """The error names the module if an entry point belongs to no distribution."""
    points = [point("one", hub_endpoint_upserted=hub_endpoint_upserted)] * 2
    with pytest.raises(ConsumerUnavailable) as caught:
        load("one", lambda: points)
    assert str(caught.value) == (
        "several distributions have it: in_memory_views_one, in_memory_views_one; uninstall all but one"
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no\n route   to host"), "ValueError: no route to host"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 256), f"ValueError: {'x' * 256}"),
        (ValueError("x" * 257), f"ValueError: {'x' * 256}"),
    ],
)
def test_error_of_a_consumer_is_one_line(error: Exception, line: str) -> None:
    """The line has the type, and at most 256 characters of the text."""
    assert describe(error) == line


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_documented_with_its_exact_signature(hook: str) -> None:
    """docs/plugins shows the exact signature of each hook."""
    signature = str(inspect.signature(getattr(views, hook))).replace("'", "")
    assert f"{hook}{signature}" in DOCS
