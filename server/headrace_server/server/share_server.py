"""One server of ``hs.on_ray``: an actor, which Ray starts again elsewhere when its node is lost.

    start ─► directory.begin ─► its state directory, the last snapshot, or the beginning
          ─► server ─► directory.here, twice a second: its address

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ray

from headrace_proto.address import RAY_NAMESPACE
from headrace_proto.errors import ServerError
from headrace_proto.keys import PUBLIC, SECRET, SERVER
from headrace_proto.token import Token

from ..files.durable_file import write_durably
from ..journal.snapshots import Shelf
from ..journal.state_directory import TERM
from ..pipeline.declaration import Declaration, Options
from ..process.log_lines import log_to_stderr
from ..process.settings import RunSettings
from .arguments import as_tokens
from .server import Server, start

logger = logging.getLogger("headrace.server")

#: Time between two reports to the directory.
_BEAT_S = 0.5
#: Time after which a missing answer of the directory is logged, and a server that ends gives it up.
_ANSWER_S = 10.0
#: Rest before Ray starts this server again, after a start that has failed.
_REST_S = 1.0


@dataclass(frozen=True)
class SharePlan:
    """The same for all servers of one ``hs.on_ray``."""

    name: str  # names its state directories and snapshots apart from those of others
    servers: int
    pipelines: Mapping[str, Declaration]
    options: Options  # of hs.run
    keys: Mapping[str, str]  # texts of files, by their path in the directory of keys

    @property
    def directory(self) -> str:
        """The name of the directory's actor."""
        return ",".join(self.pipelines)


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


class Directory:
    """The addresses of the servers of feeds, and the keys of their trainers: an actor.

    It may be lost, too: the servers report again.
    """

    def __init__(self, servers: int, keys: Mapping[str, str]) -> None:
        self._numbers = [0] * servers  # by share: that of the last server that began …
        self._addresses = [""] * servers  # … and its address, once it has one
        self._keys = dict(keys)

    def begin(self, share: int, number: int) -> int:
        """Let a server have a share from now on.  Return its number, which grows with each."""
        self._numbers[share] = max(self._numbers[share] + 1, number)
        self._addresses[share] = ""
        return self._numbers[share]

    def here(self, share: int, number: int, address: str) -> bool:
        """Note the address of a server.  False where a later one has its share."""
        if number < self._numbers[share]:
            return False
        self._numbers[share], self._addresses[share] = number, address
        return True

    def addresses(self) -> tuple[dict[int, str], str]:
        """Return the addresses of all servers by share; none, and why, while one is missing."""
        away = [str(share) for share, address in enumerate(self._addresses) if not address]
        if away:
            return {}, f"share {', '.join(away)} of {len(self._addresses)} has no server"
        return dict(enumerate(self._addresses)), ""

    def trainer_keys(self) -> dict[str, str]:
        """Return the texts of a trainer's ``secret`` and of the ``server``'s public key, if any."""
        named = {"secret": f"ray{SECRET}", "server": f"{SERVER}{PUBLIC}"} if self._keys else {}
        return {name: self._keys[file] for name, file in named.items()}


class ShareServer:
    """A server, which reports to the directory."""

    def __init__(self, plan: SharePlan, share: int) -> None:
        log_to_stderr()
        self._directory = ray.get_actor(plan.directory, namespace=RAY_NAMESPACE)
        self._plan = plan
        self._share = share
        self._ended = threading.Event()
        self._logged: set[str] = set()  # kinds of errors since the last report
        self._failure: Exception | None = None
        self._open = contextlib.ExitStack()
        context = ray.get_runtime_context()
        again = context.was_current_actor_reconstructed
        try:
            place = plan.options.get("state_dir") or self._own_place(context.get_node_id())
            self._state = Path(place, f"{share}-of-{plan.servers}")
            self._number = self._ask("begin", time.time_ns())
            self._start(again)
        except Exception as error:
            if again:
                time.sleep(_REST_S)
                self._fail(error)
            self._failure = error  # hs.on_ray raises it
            self._open.close()

    def _own_place(self, node: str) -> Path:
        """Return a directory for the state, where no server looks that starts on another node."""
        ours = Path(tempfile.gettempdir(), f"headrace-ray-{os.getuid()}")
        _claim(ours)
        self._open.callback(self._remove_state)
        return ours / self._plan.name / node

    def _ask(self, call: str, *values: object) -> Any:
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

    def _start(self, again: bool) -> None:
        plan = self._plan
        options = {**plan.options, "state_dir": self._state}
        if again and (self._state / TERM).exists():
            options.pop("resume", None)
        elif again:
            options["resume"] = self._begin_again(options)
        if plan.keys:
            options["keys"] = self._write_keys()
        settings = RunSettings(
            plan.pipelines,
            bind=f"tcp://{ray.util.get_node_ip_address()}:*",
            share=(self._share, plan.servers),
            **options,
        )
        self._server: Server = self._open.enter_context(start(settings, plan.name))
        beats = threading.Thread(target=self._watch, name="headrace-beats", daemon=True)
        beats.start()
        self._open.callback(beats.join)
        self._open.callback(self._ended.set)

    def _begin_again(self, options: Options) -> list[Token]:
        """Return the tokens to go on from in place of the state, which went with a node."""
        tokens = as_tokens(options.get("resume"), {*self._plan.pipelines})
        url = options.get("snapshots")
        if url is not None:
            share = self._share, self._plan.servers
            shelf = Shelf(self._state, str(url), share=share, origin=self._plan.name)
            for feed in self._plan.pipelines:
                if snapshot := shelf.newest(feed):
                    tokens[feed] = Token(feed, snapshot, str(url))
        for feed in self._plan.pipelines:
            point = f"from snapshot {tokens[feed].snapshot}" if feed in tokens else "anew"
            logger.warning(
                "share %d: its state went with its node; its part of feed %r begins %s",
                self._share,
                feed,
                point,
            )
        # A term before all others: trainers of the lost server learn that their work is undone.
        self._state.mkdir(parents=True, exist_ok=True)
        write_durably(self._state / TERM, json.dumps([[1, 1], [1, 1]]))
        return [*tokens.values()]

    def _write_keys(self) -> Path:
        private = tempfile.mkdtemp(prefix="headrace-ray-")
        self._open.callback(shutil.rmtree, private, ignore_errors=True)
        for path, text in self._plan.keys.items():
            file = Path(private, path)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as opened:
                opened.write(text)
        return Path(private)

    # While it runs

    def _watch(self) -> None:
        """Report the address until the server ends."""
        while True:
            try:
                if not self._ask("here", self._number, self._server.address):
                    self._fail(ServerError(f"share {self._share} was given to another server"))
                self._logged.clear()
                self._server.check()
            except ray.exceptions.RayError as error:  # the directory restarts, or has a fault
                self._log(error)
            except Exception as error:
                if not self._ended.is_set():
                    self._fail(error)
            if self._ended.wait(_BEAT_S):
                return

    # For the handle

    def started(self) -> str:
        """Return the address of the server; raise the error where it could not start."""
        if self._failure is not None:
            raise self._failure
        return self._server.address

    def stats(self) -> dict[str, dict[str, Any]]:
        return self._server.stats()

    def drain(self, timeout_s: float) -> bool:
        return self._server.drain(timeout_s)

    def close(self) -> None:
        """Stop the server, and remove its state where that has no place that the user named."""
        self._open.close()

    def _remove_state(self) -> None:
        shutil.rmtree(self._state, ignore_errors=True)
        with contextlib.suppress(OSError):  # other servers have theirs there
            self._state.parent.rmdir()
            self._state.parent.parent.rmdir()
