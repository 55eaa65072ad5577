"""The public plugin API: exports, documentation and cost of importing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hub_testkit.contexts import LocalHub

import hub.plugin
from hub.observe.providers.context import ProviderHub
from hub.observe.providers.secrets import Credential
from hub.plugin import spec

DOCS = (Path(__file__).parents[3] / "docs" / "plugins" / "index.md").read_text()


def test_dunder_all_lists_every_public_name() -> None:
    """``__all__`` lists every public name, sorted, and nothing else."""
    public = {
        name
        for name, value in vars(hub.plugin).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(hub.plugin.__all__) == public
    assert len(hub.plugin.__all__) == len(set(hub.plugin.__all__))


def test_the_hook_is_documented_with_its_exact_signature() -> None:
    """docs/plugins shows the hook's exact signature."""
    signature = str(inspect.signature(spec.hub_register_providers)).replace("'", "")
    assert f"hub_register_providers{signature}" in DOCS


@pytest.mark.parametrize("protocol", [spec.HubContext, spec.ClusterContext])
def test_every_member_of_a_context_is_documented(protocol: type) -> None:
    """docs/plugins has a row for every member of the contexts."""
    section = DOCS.split(f"## {protocol.__name__}")[1].split("\n## ")[0]
    members = [name for name in vars(protocol) if not name.startswith("_")]
    assert members
    assert [name for name in members if f"`{name}" not in section and f"await {name}(" not in section] == []


def test_every_field_of_a_type_is_documented() -> None:
    """docs/plugins has a row for every field of ProviderType."""
    section = DOCS.split("### `ProviderType`")[1].split("\n## ")[0]
    assert [name for name in spec.ProviderType.__dataclass_fields__ if f"| `{name}` |" not in section] == []


@pytest.mark.parametrize(
    ("declared", "implementation"),
    [
        (spec.HubContext.run_program, ProviderHub.run_program),
        (spec.HubContext.run_program, LocalHub.run_program),
        (spec.SecretValue.get, Credential.get),
    ],
)
def test_declared_defaults_are_those_of_the_implementations(
    declared: Callable[..., object], implementation: Callable[..., object]
) -> None:
    """The hub and the test kit have the default values that the API declares."""

    def defaults(function: Callable[..., object]) -> dict[str, object]:
        return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}

    assert defaults(implementation) == defaults(declared)


@pytest.mark.parametrize("error", [hub.plugin.TransientProviderError("x"), hub.plugin.TerminalProviderError("x")])
def test_errors_are_provider_errors(error: Exception) -> None:
    """Both errors are ProviderErrors."""
    assert isinstance(error, hub.plugin.ProviderError)


def test_importing_the_api_is_cheap() -> None:
    """Importing the API imports neither aiohttp nor pydantic, so that ``hub --version`` is fast."""
    import subprocess
    import sys

    code = "import sys, hub.plugin; print([name for name in ('aiohttp', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
