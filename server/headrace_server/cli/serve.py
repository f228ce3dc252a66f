"""``headrace serve``: a server for pipelines, until a signal ends it.

first SIGTERM or Ctrl-C    hand out nothing more, wait for the commits of what is out, end
another one                end at once

``headrace drain`` is as good as the first, and so is SIGHUP, the end of the terminal.  With a state
directory all mean that the server will be back: its trainers wait for the next one.
"""

from __future__ import annotations

import logging
import signal
import threading
from argparse import Namespace
from pathlib import Path
from types import FrameType

from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError
from headrace_proto.token import Token

from ..files.extras import require
from ..journal.restoring import Resumption, resumption
from ..process.option import Option
from ..process.settings import RunSettings, options_of
from ..server.server import Server, run
from . import exits
from .frame import with_options
from .options import as_options
from .pipelines import PIPELINES, load

logger = logging.getLogger("headrace.server")

#: How long ``headrace drain``, which looks every 0.3 s, can see the end of a drain.
_LAST_LOOK_S = 2.0


@with_options(
    PIPELINES,
    *options_of(RunSettings),
    Option("drain_timeout", "seconds", "how long a signal waits for commits", default=20.0),
    Option("exit_when_done", "flag", default=False),
)
def serve(options: Namespace) -> int:
    """Serve pipelines until SIGTERM or Ctrl-C, then hand out nothing more, wait for the
    commits of batches in trainers' hands, and end.  A second signal ends at once.

    exit_when_done: end when every feed has ended, or --drain-timeout after the last has failed:
      trainers that connect late learn why
    """
    require("google_crc32c", "server", "headrace serve")  # before a file that may be missing, too
    stop = Signals()
    given = {one.argument: getattr(options, one.name) for one in options_of(RunSettings)}
    pipelines = load(options.pipelines)
    try:
        given["resume"] = _tokens(options.resume, options.state_dir)
        server = run(pipelines, **given)
    except (ValueError, TypeError, ServerError) as error:
        error.args = (as_options(str(error), options_of(RunSettings)),)
        raise
    except OSError as error:
        error.strerror = as_options(error.strerror or "", options_of(RunSettings)) or None
        raise
    with server:
        stop.started = True
        print(f"headrace serves at {' '.join(server.addresses)}", flush=True)
        if server.http_address is not None:
            print(f"and shows itself at {server.http_address}", flush=True)
        return until_stopped(server, stop, options)


def _tokens(given: tuple[str, ...] | None, state_dir: str | None) -> list[Token] | None:
    """Return the tokens of snapshots that no start of this server has gone back to yet.

    A server that is started again with the same command goes on, and not back.
    """
    tokens = []
    for text in given or ():
        argument, content = "resume", text
        try:
            if not text.lstrip().startswith("{"):
                argument = f"{text:.120}: content"
                content = Path(text).read_text(errors="replace")
        except OSError as error:
            raise ValueError(
                f"--resume {text!r:.120} is neither a token (JSON) nor a file that can be read: "
                f"{error.strerror}"
            ) from None
        token = Token.from_plain(argument, content)
        was = Resumption() if not state_dir else resumption(Path(state_dir), token.feed)
        if token.snapshot in (was.snapshot, was.before):
            logger.warning(
                "feed %r was taken back to snapshot %s before, and goes on from where it is; its "
                "trainers go back by connect(resume=…)",
                token.feed,
                token.snapshot,
            )
        else:
            tokens.append(token)
    return tokens or None


def until_stopped(server: Server, stop: Signals, options: Namespace) -> int:
    linger: Deadline | None = None  # a failed feed reports its error to trainers that come late
    while not stop.first.is_set() and not server.draining:
        if not server.wait(0):  # or a feed was started again
            linger = None
        elif linger is None:
            linger = Deadline(options.drain_timeout if server.failed_feeds() else 0.0)
            if options.exit_when_done and linger.left_s:
                logger.warning(
                    "a feed has failed: the server ends in %g s (--drain-timeout), in which "
                    "trainers that connect late learn why",
                    options.drain_timeout,
                )
        if linger is not None and options.exit_when_done and not linger.left_s:
            break
        server.check()
        stop.first.wait(0.2)
    if stop.first.is_set() or server.draining:
        waiter = threading.Thread(target=server.drain, args=(options.drain_timeout,), daemon=True)
        waiter.start()
        another = stop.second if stop.first.is_set() else stop.first
        while waiter.is_alive() and not another.is_set():
            waiter.join(0.1)
        if not stop.first.is_set():
            stop.first.wait(_LAST_LOOK_S)
    stop.ignore()
    return exits.FAILED if server.failed_feeds() else exits.WELL


class Signals:
    """SIGTERM and SIGINT, counted, and SIGHUP."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.second = threading.Event()
        self.started = False
        self._heard = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup has set it
            self._heard.append(signal.SIGHUP)
        for number in self._heard:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.started:  # nothing is out yet: the start is given up, and cleaned up after
            raise SystemExit(0)
        # The kernel and the shell both send SIGHUP for one terminal, so it never ends at once.
        another = self.first.is_set() and number != signal.SIGHUP
        (self.second if another else self.first).set()

    def ignore(self) -> None:
        """Ignore them: Python ends its handlers before the process, which then died by a signal."""
        for number in self._heard:
            signal.signal(number, signal.SIG_IGN)
