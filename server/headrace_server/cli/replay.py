"""``headrace replay``: recorded batches served again, until a signal ends it."""

from __future__ import annotations

from argparse import Namespace

from .. import replay_server
from ..process.settings import ReplaySettings, options_of
from .options import Option
from .pipelines import PIPELINE, load_one
from .serve import DRAIN_TIMEOUT, Signals, as_arguments, until_stopped
from .table import with_options

_STATE_DIR, *_REST = options_of(ReplaySettings)


@with_options(
    _STATE_DIR,
    PIPELINE,
    *_REST,
    DRAIN_TIMEOUT,
    Option("exit_when_done", "flag", "end when all was committed", default=False),
)
def replay(options: Namespace) -> int:
    """Serve the batches that a state directory has recorded again, the same bytes in the
    order in which they were handed out, to any trainer.  The state directory is only read.
    """
    stop = Signals()
    given = as_arguments(ReplaySettings, options)
    server = replay_server.replay(given.pop("state_dir"), load_one(options.pipeline)[1], **given)
    with server:
        stop.started = True
        print(f"headrace replays at {' '.join(server.addresses)}", flush=True)
        return until_stopped(server, stop, options)
