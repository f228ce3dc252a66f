"""One server of a run, which is restarted whenever it ends, and the faults that can hit it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.ports import free_port

from .faults import fill_disk, send
from .happenings import Happenings
from .hosts import Host
from .judge import Harm
from .processes import Process, living

if TYPE_CHECKING:
    from .driver import Setup

__all__ = ["Server"]

_POLL_S = 0.02
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: Maximum time until all processes of an ended server have ended.
_LEFT_S = 20.0
#: A host's only server is always at this port.
_PORT = 5557


class Server:
    """Share ``index`` of the feed of a run."""

    def __init__(
        self,
        index: int,
        setup: Setup,
        directory: Path,
        happenings: Happenings,
        own_disk: bool,
        host: Host | None = None,
    ) -> None:
        self.name = f"s{index}"
        self.host = host
        self.worker_deaths = 0  # in this life
        self.lives = 0
        self._index, self._setup, self._happenings = index, setup, happenings
        self._state = directory / "state" / str(index)
        self._log = directory / f"server-{index}.log"
        self._own_disk = own_disk
        shared = _MEMORY if host is None else host.memory
        self._memory = Path(tempfile.mkdtemp(prefix="headrace-chaos-", dir=shared))
        if host is None:
            self.port = free_port()
            self.address = f"tcp://127.0.0.1:{self.port}"
        else:
            self.port = _PORT
            self.address = f"tcp://{host.ip}:{self.port}"
        self.process: Process | None = None
        self._next_start = 0.0
        self._away_until = 0.0  # when its host is there again
        self._sessions: set[int] = set()  # of the processes of all lives
        self._struck = False  # whether this life is to end
        self._full_until = 0.0  # when the disk has room again

    def tend(self, now: float) -> None:
        """Start it if it has ended."""
        if self.process is not None and self.process.code() is not None:
            self._happenings.note(0.0, self.name)  # by itself, or killed
            if not self._struck:
                told = f"{self.name} with code {self.process.code()}"
                self._happenings.find("a server ends when it is told to", told)
            self.process.close()
            self.process, self._next_start = None, max(self._away_until, now + 0.05)
        if self.process is None and now >= self._next_start:
            self.lives += 1
            self.worker_deaths = 0
            self._struck = now < self._full_until  # a start without room is refused
            self._start()

    def _start(self) -> None:
        setup, memory = self._setup, self._memory
        if self.host is not None:  # it sees its own shared memory where that is mounted
            memory = Path("/dev/shm") / memory.name
        options = {
            "modes": [setup.mode],
            "size": setup.size,
            "bind": self.address,
            "share": [self._index, setup.servers],
            "state_dir": None if setup.durability == "off" else str(self._state),
            "durability": setup.durability,
            "shm_dir": str(memory),
            "partitions": setup.partitions,
            "workers": setup.workers,
            "lease_ttl_s": setup.lease_s,
        }
        inside = [] if self.host is None else self.host.inside
        if setup.within:
            inside = ["sh", "-c", f'echo $$ > {setup.within}/cgroup.procs; exec "$0" "$@"']
        arguments = [json.dumps(options)]
        self.process = Process("tests.chaos.server", arguments, self._log, inside)
        self._sessions.add(self.process.pid)

    def children(self, role: str) -> list[int]:
        if self.process is None:
            return []
        found = self.process.children().items()
        return sorted(pid for pid, told in found if told.rstrip("\0").endswith(f".{role}"))

    def journals(self) -> list[Path]:
        """Return the journals; without a state directory they exist until the server ends."""
        if self._setup.durability == "off":
            return sorted(self._memory.glob("*/journals/feeds/*/*.journal"))
        return sorted(self._state.glob("feeds/*/*.journal"))

    def end(self) -> None:
        """Stop it by SIGTERM, and kill processes that are left."""
        if self.process is not None:
            self.process.close()
            deadline = time.monotonic() + _LEFT_S
            while self.process.code() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            while (left := living(self._sessions)) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            files = [str(path.relative_to(self._memory)) for path in self._memory.rglob("*")]
            if not self._struck and (left or files):
                told = f"of {self.name} processes {left}, files {files[:5]}"
                self._happenings.find("nothing is left behind", told)
            self.process.kill()
            self.process = None
        shutil.rmtree(self._memory, ignore_errors=True)

    # Harm

    def strike(self) -> None:
        """Expect the end of this life."""
        self._happenings.note(2.0, self.name)
        self._struck = True

    def kill(self) -> None:
        self.strike()
        if self.process is not None:
            self.process.kill()

    def stop(self) -> bool:
        """Send SIGTERM, as in a planned restart: it waits for commits, and announces its return."""
        self.strike()
        return self.process is not None and send([self.process.pid], signal.SIGTERM)

    def kill_supervisor(self) -> None:
        self.strike()
        if self.process is not None:
            self.process.kill(group=False)

    def orphan(self, pids: list[int], after_s: float, seconds: float) -> bool:
        """Stop the workers, kill their server, and wake them when there is another."""
        self._happenings.later(after_s, self.kill_supervisor)
        return self.suspend(pids, after_s + seconds)

    @property
    def ports(self) -> list[int]:
        """Those of the locator and of the workers."""
        return [*range(self.port, self.port + 1 + self._setup.workers)]

    def kill_locator(self) -> bool:
        self.strike()
        return send(self.children("locator"), signal.SIGKILL)

    def kill_worker(self, pids: list[int]) -> bool:
        self._happenings.note(2.0, self.name)
        self.worker_deaths += 1
        return send(pids, signal.SIGKILL)

    def suspend(self, pids: list[int], seconds: float) -> bool:
        self._happenings.note(seconds, self.name)
        self._happenings.later(seconds, lambda: send(pids, signal.SIGCONT))
        return send(pids, signal.SIGSTOP)

    def crowd_disk(self, seconds: float) -> bool:
        if not self._own_disk or not self._state.exists():
            return False
        since = time.monotonic()
        self._happenings.note(seconds + 1.0, self.name)
        self._full_until = since + seconds + 1.0
        if not self.children("worker"):  # it is starting, and a start without room is refused
            self._struck = True
        filler = fill_disk(self._state)

        def empty() -> None:
            filler.unlink(missing_ok=True)
            self._happenings.full.append(Harm(since, time.monotonic(), self.name))

        self._happenings.later(seconds, empty)
        return True

    def lose_host(self, seconds: float) -> bool:
        """Lose all processes and the link at once; the host is back some time later."""
        if self.host is None:
            return False
        self.host.cut()
        self.kill()
        self._happenings.note(seconds + 2.0, self.name)
        self._away_until = time.monotonic() + seconds
        self._happenings.later(seconds, self.host.heal)
        return True
