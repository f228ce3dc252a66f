"""``hs.replay``: recorded batches served again, in the order in which they were handed out.

    state directory ── flight ─► script ─► a server of its own, without state ─► any trainer

Nothing in the state directory is changed, and a server may be using it meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError

from .arguments import as_flag, as_keys, as_path, as_seconds, bind_addresses, refuse_in_worker
from .feed.manifest import resolve
from .pipeline import Pipeline
from .pipeline.declaration import Declaration
from .server import Server
from .shell.config import FeedConfig, RunConfig
from .shell.exposure import check_exposed
from .shell.flight_choice import ByTrainer, batch_named, steps_named
from .shell.flight_history import History, feed_of
from .shell.flight_leases import Lease
from .shell.flight_rows import BatchId
from .shell.functions import noted_functions
from .shell.living import refuse_taken
from .shell.replaying import STATES, Replay
from .shell.statedir import compare_feed

__all__ = ["replay"]

_NEEDS_STATES = (
    "segments go out with states, and those of {which} were not recorded: record='states' records "
    "them; states='initial' starts every row from its initial states instead"
)


def replay(
    state_dir: str | os.PathLike[str],
    pipeline: Pipeline,
    *,
    feed: str | None = None,
    first: str | None = None,
    last: str | None = None,
    trainer: str | int | None = None,
    steps: str | tuple[int, int] | None = None,
    committed: bool = False,
    states: str = "recorded",
    allow_config_change: bool = False,
    bind: str | list[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    lease_ttl_s: float = 30.0,
    shm_dir: str | os.PathLike[str] | None = None,
    start_timeout_s: float = 120.0,
    worker_timeout_s: float = 60.0,
) -> Server:
    """Serve the very same batches again, in the order in which they were handed out.

    They are those of ``feed`` from batch ``first`` to batch ``last`` (``"PARTITION:NUMBER"``), or
    those of one ``trainer`` (and of ``steps``, ``(a, b)`` of its batches, counted from 1); with
    ``committed`` only those whose commit counted.  A batch that was handed out twice comes twice.
    Every one says so: ``batch.replayed`` is (life, partition, number) of the one that it was.

    ``pipeline`` must be the one that was served.  Rows are read again and compared with the record.
    Segments bring the states that they brought then (served with ``record="states"``), or with
    ``states="initial"`` those that their examples begin with.  Saves and commits are taken, and
    compared with nothing.  All other arguments are those of ``hs.run``.
    """
    refuse_in_worker("hs.replay")
    if states not in STATES:
        raise ValueError(f"states={states!r:.40} is not one of {', '.join(STATES)}")
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"pipeline={pipeline!r:.80} is a {type(pipeline).__name__}, no pipeline")
    state = Path(as_path("state_dir", state_dir)).absolute()
    name = feed_of(state, feed)
    declaration = pipeline.declaration()
    if states != "recorded" and declaration.shape.kind != "sequences":
        raise ValueError(f"states={states!r} needs a feed of segments: others have no states")
    config = FeedConfig(
        name, declaration, resolve(declaration.source.paths), _partitions(state, name)
    )
    allow_change = as_flag("allow_config_change", allow_config_change)
    compare_feed(state, config, state / "feeds" / name / "feed.json", allow_change)
    history = History(state, name)
    leases = _chosen(history, first, last, trainer, steps)
    if as_flag("committed", committed):
        leases = [lease for lease in leases if lease.fate == "committed"]
    if not leases:
        raise ServerError(f"no hand-out of feed {name!r} that is recorded is meant by that")
    script = tuple(lease.batch for lease in leases)
    _check(history, script, declaration, states, leases)
    binds = bind_addresses(bind)
    check_exposed(binds, keys, as_flag("insecure", insecure))
    refuse_taken([("bind", one) for one in binds])
    run = RunConfig(
        feeds=(
            FeedConfig(
                name,
                declaration,
                config.files,
                partitions=1,
                functions=noted_functions(state / "feeds" / name),
                may_change=allow_config_change,
            ),
        ),
        directory="",
        binds=tuple(binds),
        keys=None if keys is None else as_keys(keys),
        lease_ttl_s=as_seconds("lease_ttl_s", lease_ttl_s),
        heartbeat_s=min(1.0, lease_ttl_s / 4),
        slab_bytes=0,
        index_directory=str(state / "index"),
        replay=Replay(str(state), name, config.partitions, script, states).to_plain(),
        python_path=tuple(os.path.abspath(entry) for entry in sys.path),
    )
    return Server(
        run,
        None if shm_dir is None else as_path("shm_dir", shm_dir),
        as_seconds("start_timeout_s", start_timeout_s),
        None,
        as_seconds("worker_timeout_s", worker_timeout_s),
    )


def _partitions(state: Path, feed: str) -> int:
    """The partitions that a feed was served with."""
    file = state / "feeds" / feed / "feed.json"
    try:
        return int(json.loads(file.read_text())["partitions"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ServerError(f"{file} does not say what the feed was: {error!r:.200}") from None


def _chosen(
    history: History,
    first: str | None,
    last: str | None,
    trainer: str | int | None,
    steps: str | tuple[int, int] | None,
) -> list[Lease]:
    every = list(history.leases)
    if trainer is not None:
        if first is not None or last is not None:
            raise ValueError("first and last are of all trainers: give them, or trainer and steps")
        if isinstance(steps, tuple):
            steps = "-".join(map(str, steps))
        counted = None if steps is None else steps_named("steps", steps)
        return ByTrainer(str(trainer), counted).of(every)
    if steps is not None:
        raise ValueError("steps needs trainer: each trainer counts its own")
    start, stop = 0, len(every)
    if first is not None:
        start = min(_places(every, batch_named("first", first, every)))
    if last is not None:
        stop = max(_places(every, batch_named("last", last, every))) + 1
    return every[start:stop]


def _places(leases: Sequence[Lease], batch: BatchId) -> list[int]:
    places = [at for at, lease in enumerate(leases) if lease.batch == batch]
    if not places:
        raise ValueError(f"no record tells of a hand-out of batch {batch}")
    return places


def _check(
    history: History,
    script: Sequence[BatchId],
    declaration: Declaration,
    states: str,
    leases: Sequence[Lease],
) -> None:
    """Whether all of it can be served.  ServerError says why not."""
    recorded = history.recorded(set(script))
    gone = [batch for batch in script if batch not in recorded]
    if gone:
        raise ServerError(
            f"the rows of {len(gone)} of these batches are recorded no more, among them "
            f"{gone[0]}: the oldest go (record_bytes), so begin after it"
        )
    options: Any = declaration.shape.options
    if declaration.shape.kind != "sequences" or states == "initial":
        return
    if not all(recorded.has_states(batch) for batch in script):
        raise ServerError(_NEEDS_STATES.format(which="these batches"))
    trainers = {lease.trainer for lease in leases}
    if options["state_placement"] == "trainer" and (len(trainers) > 1 or leases[0].step > 1):
        raise ServerError(
            "the states of this feed stay with its trainers (state_placement='trainer'): what goes "
            "out is only what a trainer's lanes began with, so replay one trainer's session from "
            "its first step, or with states='initial'"
        )
