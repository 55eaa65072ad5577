"""Debian's Chromium, driven by playwright, for pages on loopback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, ViewportSize, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
"""Flags that keep Chromium from contacting any other host than the page's."""
PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}


def executable() -> str:
    """The path of Chromium. Without it the test is skipped, or fails in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Chromium to show the status page to: make deps", pytrace=False)
        pytest.skip("NO CHROMIUM, THE STATUS PAGE IS NOT TESTED: make deps")
    return found


@contextmanager
def chromium(folder: Path) -> Iterator[BrowserContext]:
    """A browser with its own profile."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder, executable_path=executable(), headless=True, args=list(FLAGS), viewport=DESKTOP
        )
        try:
            yield context
        finally:
            context.close()
