"""Cuts of power: acknowledged commits are on the disk, even if it still had writes to do.

    writer (a real Journal) on ext4 on a file ── acks ──► here
    stop it ─► copy the file: what has reached the "disk" ─► mount the copy ─► open it as a Journal

With ``durability="power"`` no ack may be missing; with "process" the last ones may, and whatever is
there is whole and of one moment.  The writer goes on after each cut, and is now and then killed.
That cuts are seen at all is shown by the acks that "process" loses.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace_proto.errors import ServerError
from headrace_server.journal.journal import Journal
from headrace_server.shaping.stored_state import Change, Saved
from tests.unit.changes import Example, listed

from .frame import Report, Setup
from .mounts import image, mounted

__all__ = ["WRITER", "fault_of", "run"]

_CUTS = 100  # of each durability
_SIZE = 64 * 2**20
_STATES = 20
_LIFE = 8  # cuts of one writer
_PATIENCE_S = 20.0
#: A program that commits without end, and prints each change that is acknowledged.
WRITER = """
import os, sys
from pathlib import Path
from headrace_server.shaping.stored_state import Change
from headrace_server.journal.journal import Journal
from tests.unit.changes import Example, examples_of
bell = os.eventfd(0)
store = Journal(Path(sys.argv[1]), sys.argv[2], bell)
n = told = int(store.load().meta.get("n", b"-1"))
while True:
    while n - told < 8:
        n += 1
        state = b"%d" % n * 400
        states = [Example(k, k, 0, 0, n, n + 2, 0, (0, b"k"), state) for k in range(n, n + 20)]
        put = examples_of(states)
        store.submit(Change(put=put, drop=[n - 1], meta={"n": b"%d" % n}, tokens=[n]), tickets=[n])
    os.eventfd_read(bell)
    for told in store.take_done():
        os.write(1, b"%d\\n" % told)
"""


class _Writer:
    """A process that commits without end, and the acks that it got."""

    def __init__(self, path: Path, durability: str) -> None:
        import_path = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), durability],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": import_path},
        )
        assert self._process.stdout is not None
        self._fd = self._process.stdout.fileno()
        os.set_blocking(self._fd, False)
        self._rest = b""
        self.told = -1

    def listen(self) -> None:
        """Read the acknowledgements that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._fd, 65536):
                *lines, self._rest = (self._rest + part).split(b"\n")
                self.told = int(lines[-1]) if lines else self.told

    def work(self, acks: int) -> None:
        """Let it come so far."""
        deadline, upto = time.monotonic() + _PATIENCE_S, self.told + acks
        while self.told < upto:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the writer came to {self.told} and no further")
            time.sleep(0.001)
            self.listen()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def _copied(disk: Path, to: Path) -> int:
    """Copy a disk as it is at one moment; how often that took.

    What the kernel writes meanwhile would make a copy of two moments, so two in succession must be
    the same.
    """
    before = b""
    for tries in range(1, 100):
        data = disk.read_bytes()
        if data == before:
            to.write_bytes(data)
            return tries
        before = data
    raise RuntimeError("the disk does not come to rest")


def _example(line: int, n: int) -> Example:
    """Return the writer's example of a line after change ``n``."""
    return Example(line, line, 0, 0, n, n + 2, 0, (0, b"k"), b"%d" % n * 400)


def fault_of(saved: Saved, told: int, durability: str) -> str:
    """Return why a store can not be that of a writer with these acks; empty if it can."""
    n = int(saved.meta.get("n", b"-1"))
    if durability == "power" and n < told:
        return f"{told} was told to be committed, and {n} is there"
    if saved.tokens != list(range(n + 1))[-65_536:]:
        return f"tokens up to {saved.tokens[-1:]} and not to {n}"
    if saved.examples.lines.tolist() != (list(range(n, n + _STATES)) if n >= 0 else []):
        return f"the examples are not those of {n}"
    if any(e != _example(e.line, n) for e in listed(saved.examples)):
        return f"the states are not those of {n}"
    return ""


def _look(copy: Path, at: Path, durability: str, told: int, report: Report) -> None:
    """Mount a copy and judge its content."""
    with mounted(at, ["-o", "loop", str(copy)]):
        path = at / "0.journal"
        if durability == "process" and not path.exists():
            report.count("process: nothing there yet")
            return
        try:
            store = Journal(path, durability)
            try:
                saved = store.load()
                store.submit(Change(tokens=[1]))
            finally:
                store.close()
        except ServerError as error:
            report.wrong(f"{durability}: {error}")
            return
        fault = fault_of(saved, told, durability)
        if fault:
            report.wrong(f"{durability}: {fault}")
        lost = max(0, told - int(saved.meta.get("n", b"-1")))
        report.count(f"{durability}: acks lost", lost)
        report.count(f"{durability}: cuts that lost acks", bool(lost))


def _cuts(durability: str, cuts: int, setup: Setup, report: Report) -> None:
    chance = setup.chance(f"power {durability}")
    disk, copy = setup.scratch / f"{durability}.img", setup.scratch / "copy.img"
    done = 0
    while done < cuts:
        image(disk, _SIZE)
        with mounted(setup.scratch / "disk", ["-o", "loop,commit=1", str(disk)]) as at:
            writer = _Writer(at / "0.journal", durability)
            try:
                for _ in range(min(_LIFE, cuts - done)):
                    writer.work(chance.choice([1, 3, 10, 40, 150, 400]))
                    writer.send(signal.SIGSTOP)
                    copies = _copied(disk, copy)
                    writer.listen()
                    report.count(f"{durability}: cuts")
                    report.count("copies made", copies)
                    _look(copy, setup.scratch / "copy", durability, writer.told, report)
                    writer.send(signal.SIGCONT)
                    done += 1
            finally:
                writer.kill()
        disk.unlink()
        report.count("writers")


def run(setup: Setup, report: Report) -> None:
    for durability in ("power", "process"):
        _cuts(durability, setup.sized(_CUTS), setup, report)
