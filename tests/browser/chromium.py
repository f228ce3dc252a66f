"""A headless Chromium that reports the errors of its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Missing", "chromium"]

#: In a container the sandbox can not be had, and the only page that is opened is ours.
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


class Missing(Exception):
    """A needed program is not installed; the text names it."""


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; Missing where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise Missing("playwright is not installed: pip install '.[browser]'") from None
    program = shutil.which("chromium")
    if program is None:
        raise Missing("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
