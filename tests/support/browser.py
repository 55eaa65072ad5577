"""Debian's Chromium over a page on loopback, driven by playwright."""

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
"""Nothing that would ask anybody but the page under test."""
PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}


def executable() -> str:
    """Chromium; skips the test where there is none, and fails it in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Chromium to show the status page to: make deps", pytrace=False)
        pytest.skip("NO CHROMIUM, THE STATUS PAGE IS NOT TESTED: make deps")
    return found


@contextmanager
def chromium(folder: Path) -> Iterator[BrowserContext]:
    """A browser with a profile of its own."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder, executable_path=executable(), headless=True, args=list(FLAGS), viewport=DESKTOP
        )
        try:
            yield context
        finally:
            context.close()
