"""Takes the pictures of the page that docs/watching.md shows.

python -m tests.browser.pictures
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import headrace_server as hs

from .chromium import Missing, chromium
from .feeds import buckets, segments, trained

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
#: So long the plots have something to show.
_SETTLED_S = 75


def main() -> None:
    try:
        _take()
    except Missing as error:
        print(f"no pictures are taken: {error}")


def _take() -> None:
    feeds = {"speech": segments(), "slow-source": buckets()}
    steps = (("speech", 0.15), ("speech", 0.25), ("speech", 0.2), ("slow-source", 0.01))
    with chromium() as browser, tempfile.TemporaryDirectory() as state:
        options: dict[str, Any] = {
            "partitions": 4,
            "workers": 2,
            "state_dir": state,
            "http": "127.0.0.1:0",
        }
        with hs.run(feeds, **options) as server, trained(server.address, *steps):
            size = {"width": 1240, "height": 1000}
            page = browser.new_context(color_scheme="light", viewport=size).new_page()
            page.goto(f"{server.http_address}/#slow-source")  # its plots begin now
            time.sleep(_SETTLED_S / 2)
            print("a worker is killed now: what went wrong is to be seen, too", flush=True)
            os.kill(
                next(p for n, p in server.pids.items() if n.startswith("worker-1")), signal.SIGABRT
            )
            time.sleep(_SETTLED_S / 2)
            page.wait_for_selector("body[data-ready]")
            page.screenshot(path=PICTURES / "watching.png", full_page=True)


if __name__ == "__main__":
    main()
