"""The syntax of secret references, in all places that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hub_testkit.contexts import LocalHub

from hub.observe.providers.secrets import credential
from hub.plugin import TerminalProviderError
from hub.plugin.fields import SecretRef
from hub.plugin.references import source_of
from hub.runtime.clock import SystemClock


async def read_secret(name: str, key: str) -> str:
    """Read a Secret, as a hub that may read Secrets does."""
    return f"{name}/{key}"


def by_hub(ref: Mapping[str, str]) -> object:
    """The credential as a running hub opens it."""
    return credential(ref, Path("/"), read_secret, SystemClock())


PLACES = pytest.mark.parametrize(
    "take", [source_of, SecretRef.model_validate, by_hub, LocalHub().secret], ids=["grammar", "field", "hub", "kit"]
)


@PLACES
@pytest.mark.parametrize("ref", [{"env": "TOKEN"}, {"file": "token"}, {"secret": "cloud", "key": "token"}])
def test_a_reference_names_one_place(take: Callable[[Mapping[str, str]], object], ref: Mapping[str, str]) -> None:
    """A reference names an environment variable, a file, or a key of a Secret."""
    take(ref)


@PLACES
@pytest.mark.parametrize(
    "ref",
    [
        {},
        {"secret": "hunter2"},
        {"key": "hunter2"},
        {"env": "hunter2", "file": "hunter2"},
        {"env": ""},
        {"file": ""},
        {"secret": "hunter2", "key": ""},
        {"env": 7},
        {"file": None},
        {"secret": ["hunter2"], "key": "token"},
    ],
)
def test_anything_else_is_refused(take: Callable[[Mapping[str, str]], object], ref: Mapping[str, str]) -> None:
    """A reference with no source, several, an incomplete one, or values that are not strings is refused."""
    with pytest.raises((ValueError, TerminalProviderError)):
        take(ref)


@pytest.mark.parametrize("take", [source_of, by_hub, LocalHub().secret], ids=["grammar", "hub", "kit"])
def test_the_error_names_the_forms_and_quotes_nothing(take: Callable[[Mapping[str, str]], object]) -> None:
    """The error does not quote the reference, which may contain the credential itself."""
    with pytest.raises((ValueError, TerminalProviderError)) as caught:
        take({"token": "hunter2"})
    assert str(caught.value).endswith(" {env: NAME}, {file: PATH} or {secret: NAME, key: KEY}")
    assert "hunter2" not in str(caught.value)
