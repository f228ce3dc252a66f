"""One server of ``hs.on_ray``: an actor, which Ray starts again elsewhere when its node is lost.

    start ─► directory.begin ─► its state directory: as it lies here, or made of what is mirrored
          ─► server ─► directory.here, twice a second: its address, feeds to be taken back

The process ends where it cannot go on: Ray starts it again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import ray

from headrace_proto.address import RAY_NAMESPACE
from headrace_proto.errors import ServerError

from ..files.durable_file import write_durably
from ..pipeline.declaration import Declaration
from ..process.settings import RunSettings
from ..server import Server, start
from ..state.mirror import Mirrored
from ..state.restoring import GENERATION, last_snapshot
from .directory import TERM, Begun, Directory, Losses, Superseded
from .forwarding import Forwarder

logger = logging.getLogger("headrace.server")

#: Time between two reports to the directory.
_BEAT_S = 0.5
#: The file of the last losses after which the state beside it was taken back, by ``hs.on_ray``.
_TAKEN_BACK = "taken-back.json"
#: Time after which a missing answer of the directory is logged, and a server that ends gives it up.
_ANSWER_S = 10.0
#: Rest before Ray starts this server again, after a start that has failed.
_REST_S = 1.0


@dataclass(frozen=True)
class SharePlan:
    """The same for all servers of one ``hs.on_ray``."""

    name: str  # names its state directories apart from those of others
    servers: int
    pipelines: Mapping[str, Any]  # declarations, as plain data
    options: Mapping[str, Any]  # of hs.run
    keys: Mapping[str, str]  # texts of files, by their path in the directory of keys

    @property
    def directory(self) -> str:
        """The name of the directory's actor."""
        return ",".join(self.pipelines)

    @property
    def with_states(self) -> list[str]:
        """The feeds that have states."""
        every = self.pipelines.items()
        return [name for name, one in every if one["shape"].get("initial_states")]


def _claim(directory: Path) -> None:
    """Make a directory of this user alone, at a name that others can guess."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o077:
        raise ServerError(
            f"{directory} has mode {stat.filemode(found.st_mode)} and owner {found.st_uid}; states "
            "lie only in a directory of the server's user with mode drwx------: remove it, or "
            "give state_dir="
        )


class DirectoryActor(Directory):
    """The directory, as an actor."""

    def __init__(self, servers: int, with_states: Sequence[str], keys: Mapping[str, str]) -> None:
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        super().__init__(servers, with_states, keys, restarted)


class ShareServer:
    """A server, which reports to the directory."""

    def __init__(self, plan: SharePlan, share: int) -> None:
        logging.basicConfig(level=logging.INFO)
        self._directory = ray.get_actor(plan.directory, namespace=RAY_NAMESPACE)
        self._plan = plan
        self._share = share
        self._number = 0
        self._address = ""
        self._ended = threading.Event()
        self._logged: set[str] = set()  # kinds of errors since the last report
        self._failure: Exception | None = None
        self._reporting = threading.Lock()
        self._open = contextlib.ExitStack()
        context = ray.get_runtime_context()
        place = plan.options.get("state_dir")
        if place is None:  # where no server looks that starts on another node
            ours = Path(tempfile.gettempdir(), f"headrace-ray-{os.getuid()}")
            try:
                _claim(ours)
            except ServerError as error:
                self._not_started(error, again=context.was_current_actor_reconstructed)
                return
            place = ours / plan.name / context.get_node_id()
            self._open.callback(self._remove_state)
        self._state = Path(place, f"{share}-of-{plan.servers}")
        self._older = self._state.with_name(f"{self._state.name}.old")
        self._private = Path(tempfile.mkdtemp(prefix="headrace-ray-"))  # keys, a socket
        self._open.callback(shutil.rmtree, self._private, ignore_errors=True)
        while (begun := self._ask("begin", self._term(), time.time_ns())) is None:
            time.sleep(_BEAT_S)
        try:
            self._start(begun)
        except Exception as error:
            self._not_started(error, again=begun.again)

    def _not_started(self, error: Exception, again: bool) -> None:
        if again:
            time.sleep(_REST_S)
            self._fail(error)
        self._failure = error  # hs.on_ray raises it
        self._open.close()

    def _term(self) -> str:
        file = self._state / TERM
        return file.read_text() if file.exists() else ""

    def _ask(self, call: str, *values: Any) -> Any:
        """Return the directory's answer.  Only a server that ends does not wait on."""
        answer = getattr(self._directory, call).remote(self._share, *values)
        while True:
            try:
                return ray.get(answer, timeout=_ANSWER_S)
            except ray.exceptions.GetTimeoutError as error:
                if self._ended.is_set():
                    raise
                self._log(error)

    def _log(self, error: Exception) -> None:
        """Log an error of a call to the directory, once for each kind until a report succeeds."""
        kind = type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            logger.error("share %d: the directory does not answer: %r", self._share, error)

    def _fail(self, error: BaseException) -> NoReturn:
        logger.critical("share %d ends: %s", self._share, error, exc_info=error)
        os._exit(1)

    # Start

    def _start(self, begun: Begun) -> None:
        plan, self._number = self._plan, begun.number
        options = {**plan.options, "state_dir": self._state}
        if begun.again:
            options.pop("resume", None)
        if begun.lost:
            self._begin_state(begun.notes)
        if plan.keys:
            options["keys"] = self._private / "keys"
            for path, text in plan.keys.items():
                file = options["keys"] / path
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as opened:
                    opened.write(text)
        keep = partial(self._ask, "keep", self._number)
        forwarder = Forwarder(str(self._private / "mirror"), keep, self._fail)
        self._open.callback(forwarder.close)
        mirrored = Mirrored(
            socket=forwarder.path,
            begun=lambda _: self._report(),
            partitions=begun.partitions if begun.lost else {},
            taken_back={feed: to for feed, (_, to) in begun.owed.items()} if begun.lost else {},
        )
        settings = RunSettings(
            {name: Declaration.from_plain(plain) for name, plain in plan.pipelines.items()},
            bind=f"tcp://{ray.util.get_node_ip_address()}:*",
            share=(self._share, plan.servers),
            **options,
        )
        self._server: Server = self._open.enter_context(start(settings, mirrored))
        if begun.lost:
            self._note_taken_back(begun.owed)
        self._address = self._server.address
        beats = threading.Thread(target=self._watch, name="headrace-beats", daemon=True)
        beats.start()
        self._open.callback(beats.join)
        self._open.callback(self._ended.set)

    def _begin_state(self, notes: Mapping[str, str]) -> None:
        """Begin a state directory where another node had one; one that lies here is too old."""
        state = self._state
        if state.exists():
            shutil.rmtree(self._older, ignore_errors=True)
            os.rename(state, self._older)
        for path, text in notes.items():
            (state / path).parent.mkdir(parents=True, exist_ok=True)
            (state / path).write_text(text)

    # While it runs

    def _report(self) -> dict[str, tuple[int, str]]:
        """Report to the directory all that another start needs; return the feeds to be taken back.

        The thread of beats and the supervisor both report.  A report of the term before must not
        arrive after that of the present one: the next start would find its state directory too old.
        """
        state, plan = self._state, self._plan
        with self._reporting:
            notes = {TERM: self._term()}
            for feed in plan.pipelines:
                path = Path("feeds", feed, GENERATION)
                if (state / path).exists():
                    notes[str(path)] = (state / path).read_text()
            found, share = {}, (self._share, plan.servers)
            if plan.options.get("snapshots") is not None:
                found = {feed: last_snapshot(state, feed, share) for feed in plan.with_states}
            snapshots = {feed: snapshot for feed, snapshot in found.items() if snapshot}
            answer: dict[str, tuple[int, str]] = self._ask(
                "here", self._number, self._address, notes, snapshots, self._taken_back()
            )
            return answer

    def _taken_back(self) -> dict[str, tuple[int, str]]:
        """Return the last losses after which the state here was taken back."""
        file = self._state / _TAKEN_BACK
        found = json.loads(file.read_text()) if file.exists() else {}
        return {feed: (loss, to) for feed, (loss, to) in found.get(self._plan.name, {}).items()}

    def _note_taken_back(self, losses: Losses) -> None:
        plain = {self._plan.name: {**self._taken_back(), **losses}}
        write_durably(self._state / _TAKEN_BACK, json.dumps(plain))

    def _watch(self) -> None:
        while not self._ended.wait(_BEAT_S):
            try:
                for feed, (loss, snapshot) in self._report().items():
                    self._server._take_back(feed, snapshot)
                    self._note_taken_back({feed: (loss, snapshot)})
                self._logged.clear()
                self._server.check()
            except Superseded as error:
                self._fail(error)
            except ray.exceptions.RayError as error:  # the directory restarts, or has a fault
                self._log(error)
            except Exception as error:
                if not self._ended.is_set():
                    self._fail(error)

    # For the handle

    def started(self) -> str:
        """Return the address of the server; raise the error where it could not start."""
        if self._failure is not None:
            raise self._failure
        return self._address

    def stats(self) -> dict[str, dict[str, Any]]:
        return self._server.stats()

    def drain(self, timeout_s: float) -> bool:
        return self._server.drain(timeout_s)

    def close(self) -> None:
        """Stop the server, and remove its state where that has no place that the user named."""
        self._open.close()

    def _remove_state(self) -> None:
        for state in (self._state, self._older):
            shutil.rmtree(state, ignore_errors=True)
        with contextlib.suppress(OSError):  # other servers have theirs there
            self._state.parent.rmdir()
            self._state.parent.parent.rmdir()
