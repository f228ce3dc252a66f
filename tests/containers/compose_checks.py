"""The compose file: read by docker's own compose, and brought up through podman's socket.

The demo's trainers say how many segments they trained.  Together that is every segment of every
epoch, and nothing is left for those of a second start.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from .engine import ROOT, Engine, until
from .outcome import Outcomes
from .tools import call, compose_plugin

__all__ = ["bring_up", "check_file"]

_FILE = ROOT / "docker-compose.yml"
_TRAINERS = ("trainer-0", "trainer-1")
_EPOCHS = 4


def check_file(scratch: Path) -> str:
    """It is valid, with each profile; and a slip in it would be seen."""
    env = compose_plugin(scratch)
    for profile in ((), ("--profile", "observe")):
        call("docker", "compose", "-f", _FILE, *profile, "config", "-q", env=env)
    slip = scratch / "slip.yml"
    slip.write_text(_FILE.read_text().replace("stop_grace_period", "stop_grace_perriod"))
    done = call("docker", "compose", "-f", slip, "config", "-q", env=env, code=None)
    assert done.returncode != 0, "a slip in it was not seen"
    version = call("docker", "compose", "version", "--short", env=env).stdout.strip()
    return f"by compose {version}; a slip is refused: {done.stderr.strip().splitlines()[-1][-60:]}"


def bring_up(engine: Engine, outcomes: Outcomes, scratch: Path, port: int) -> None:
    env = compose_plugin(scratch)
    with engine.served() as address:
        compose = _Compose(engine, {**env, **address, "FEED_PORT": str(port)})
        try:
            if outcomes.ran("compose up: the demo trains", compose.demo):
                outcomes.ran("compose up again: nothing is left", compose.again)
        finally:
            outcomes.ran("compose down", compose.down)
            engine.remove_all()


class _Compose:
    def __init__(self, engine: Engine, env: dict[str, str]) -> None:
        self.engine = engine
        self.env = env

    def _compose(self, *words: str, timeout_s: float = 60) -> str:
        return call("docker", "compose", *words, env=self.env, cwd=ROOT, timeout_s=timeout_s).stdout

    def demo(self) -> str:
        self._up()
        self._wait(600)
        told = [self._segments(name) for name in _TRAINERS]
        assert sum(told) == _segments() * _EPOCHS, f"{told} of {_segments() * _EPOCHS}"
        assert all(told), f"a trainer had nothing to do: {told}"
        return f"{' + '.join(map(str, told))} segments, as many as there are"

    def again(self) -> str:
        before = [self._segments(name) for name in _TRAINERS]
        self._compose("stop", timeout_s=60)
        code = self.engine.state("headrace-server-1", ".State.ExitCode")
        assert code == "0", f"the server ended with {code}"
        self._up()
        self._wait(300)
        after = [self._segments(name) for name in _TRAINERS]
        assert after == [0, 0], f"{before}, and then {after}"
        return "the server drained with exit code 0, and its state was kept"

    def down(self) -> str:
        self._compose("down", "--volumes", timeout_s=90)
        return "and its volumes"

    def _up(self) -> None:
        words = ("up", "--detach", "--no-build", "--pull", "never")
        with self.engine.watching("headrace-server-1"):
            self._compose(*words, timeout_s=120)

    def _wait(self, seconds: float) -> None:
        """Until the trainers have ended, and well."""
        for name in (f"headrace-{name}-1" for name in _TRAINERS):
            until(partial(self._over, name), seconds, f"{name} ends")

    def _over(self, name: str) -> bool:
        status, code = self.engine.state(name, ".State.Status}} {{.State.ExitCode").split()
        assert code == "0", f"{name} ended with {code}: {self.engine.podman('logs', name)[-1000:]}"
        return status == "exited"

    def _segments(self, name: str) -> int:
        """Return the number of segments that a trainer printed at its end."""
        log = self.engine.podman("logs", f"headrace-{name}-1")
        told = re.findall(r"^(\d+) segments\b", log, re.MULTILINE)
        assert told, f"{name} said {log[-1000:]!r}"
        return int(told[-1])


def _segments() -> int:
    """How many segments the demo's data have."""
    code = "import sys, symbols, pathlib; "
    code += "print(sum(symbols.write(pathlib.Path(sys.argv[1]), 2000, 8).values()))"
    with tempfile.TemporaryDirectory() as data:
        done = call(sys.executable, "-c", code, data, cwd=ROOT / "examples")
    return int(done.stdout)
