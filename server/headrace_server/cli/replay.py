"""``headrace replay``: recorded batches served again, until a signal ends it."""

from __future__ import annotations

from argparse import Namespace

from ..replay_server import replay
from ..shell.replaying import STATES
from .flight import FEED, STATE_DIR, STEPS, TRAINER
from .options import Option
from .pipelines import PIPELINE, load_one
from .serve import INSECURE, KEYS, Signals, until_stopped
from .table import Command

__all__ = ["COMMAND"]

_OPTIONS = (
    STATE_DIR,
    PIPELINE,
    FEED,
    Option(
        "from",
        "text",
        "from this batch on",
        told="the first that is recorded",
        metavar="P:N",
        argument="first",
    ),
    Option(
        "to",
        "text",
        "up to this batch",
        told="the last that is recorded",
        metavar="P:N",
        argument="last",
    ),
    TRAINER,
    STEPS,
    Option("committed", "flag", "only hand-outs whose commit counted", default=False),
    Option(
        "states",
        "text",
        "of segments: those that they brought, or those that their examples begin with",
        default="recorded",
        choices=STATES,
    ),
    Option("allow_config_change", "flag", "though the pipeline has changed", default=False),
    Option(
        "bind",
        "text",
        "where trainers connect; may be repeated",
        default=("tcp://127.0.0.1:5557",),
        metavar="ADDRESS",
        many=True,
    ),
    KEYS,
    INSECURE,
    Option("drain_timeout", "seconds", "how long SIGTERM waits for commits", default=20.0),
    Option("exit_when_done", "flag", "end when all was committed", default=False),
)


def _replay(options: Namespace) -> int:
    stop = Signals()
    _, pipeline = load_one(options.pipeline)
    server = replay(
        options.state_dir,
        pipeline,
        feed=options.feed,
        first=getattr(options, "from"),
        last=options.to,
        trainer=options.trainer,
        steps=options.steps,
        committed=options.committed,
        states=options.states,
        allow_config_change=options.allow_config_change,
        bind=list(options.bind),
        keys=options.keys,
        insecure=options.insecure,
    )
    with server:
        stop.started = True
        print(f"headrace replays at {' '.join(server.addresses)}", flush=True)
        return until_stopped(server, stop, options)


COMMAND = Command(
    "Serves the batches that a state directory has recorded once more, the very same bytes in the "
    "order in which they were handed out, to any trainer.  The state directory is only read.",
    _OPTIONS,
    _replay,
)
