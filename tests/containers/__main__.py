"""``python -m tests.containers``: all checks, and a table of what ran and what did not."""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from . import __doc__ as about
from . import compose_checks, tools
from .engine import Engine
from .outcome import Outcomes, Skip
from .server_checks import SERVER, TRAINER, check_server


def main() -> int:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="install what is missing (apt-get)")
    parser.add_argument("--scratch", type=Path, help="storage of the images (default: a new one)")
    parser.add_argument("--keep", action="store_true", help="leave it, for a faster next time")
    options = parser.parse_args()
    scratch = options.scratch or Path(tempfile.mkdtemp(prefix="headrace-containers-"))
    scratch.mkdir(parents=True, exist_ok=True)
    outcomes = Outcomes()
    try:
        _check(outcomes, scratch.absolute(), options.install)
    finally:
        if not options.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    print(f"\n{outcomes.table()}")
    return 1 if outcomes.failures else 0


def _check(outcomes: Outcomes, scratch: Path, install: bool) -> None:
    if install:
        outcomes.ran("packages are installed", tools.install)
    composed = outcomes.validated(
        "docker-compose.yml, by docker compose", lambda: compose_checks.check_file(scratch)
    )
    try:
        engine = Engine(scratch)
        images = (
            outcomes.ran("look-alike of python:3.11-slim", engine.base)
            and outcomes.ran(
                "server image", lambda: engine.build("docker/server.Dockerfile", SERVER)
            )
            and outcomes.ran(
                "trainer image", lambda: engine.build("docker/trainer.Dockerfile", TRAINER)
            )
        )
    except Skip as reason:
        outcomes.skipped("images, containers, compose up", str(reason))
        return
    if not images:
        outcomes.skipped("containers, compose up", "there are no images")
        return
    check_server(engine, outcomes)
    if composed:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        compose_checks.bring_up(engine, outcomes, scratch, port)
    else:
        outcomes.skipped("compose up", "there is no compose plugin")


if __name__ == "__main__":
    sys.exit(main())
