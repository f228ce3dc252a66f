"""``hs.replay``: recorded batches served again, in the order in which they were handed out.

    state directory ── flight ─► script ─► a server of its own, without state ─► any trainer

Nothing in the state directory is changed, and a server may be using it meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError, kind_of

from .arguments import refuse_in_worker, start_config
from .files.manifest import resolve
from .flight.choice import batch_named, handed_to, steps_named
from .flight.feed_record import FeedRecord, Replay, beside_of, feed_of, served_as, share_of
from .flight.hand_outs import HandOut
from .flight.rows import BatchId
from .pipeline.builder import Pipeline
from .pipeline.declaration import Declaration
from .process.config import FeedConfig
from .process.settings import ReplaySettings, taking
from .server import Server
from .state.statedir import compare_feed

_NEEDS_STATES = (
    "segments go out with states, and those of {which} were not recorded: record='states' records "
    "them; states='initial' starts every row from its initial states instead"
)


@taking(ReplaySettings)
def replay(settings: ReplaySettings) -> Server:
    """Serve recorded batches again, in the order in which they were handed out.

    They are those of ``feed`` from batch ``first`` to batch ``last`` (``"PARTITION:NUMBER"``), or
    those of one ``trainer`` (and of ``steps``, ``(a, b)`` of its batches, counted from 1); with
    ``committed`` only those whose commit counted.  A batch that was handed out twice comes twice.
    ``batch.replayed`` is (life, partition, number) of the original batch.

    ``pipeline`` must be the one that was served.  Rows are read again and compared with the record.
    Segments have the recorded states (of a server with ``record="states"``), or with
    ``states="initial"`` the initial states of their examples.  Saves and commits are accepted and
    ignored.  The options, with their defaults and bounds:
    """
    refuse_in_worker("hs.replay")
    pipeline, states = settings.pipeline, settings.states
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"pipeline={pipeline!r:.80} is {kind_of(pipeline)}, no pipeline")
    state = Path(settings.state_dir).absolute()
    name = feed_of(state, settings.feed)
    declaration = pipeline.declaration()
    if states != "recorded" and not declaration.shape.options.get("initial_states"):
        raise ValueError(f"states={states!r} needs a feed of segments with states: this has none")
    config = FeedConfig(
        name,
        declaration,
        resolve(declaration.source.paths),
        served_as(state, name, lambda noted: int(noted["partitions"])),
    )
    beside = [one.absolute() for one in beside_of(settings.beside)]
    history = FeedRecord(state, name, beside)
    for one in (state, *beside):
        its = dataclasses.replace(config, share=share_of(one, name))
        compare_feed(one, its, one / "feeds" / name / "feed.json", settings.allow_config_change)
    leases = _chosen(history, settings)
    if settings.committed:
        leases = [lease for lease in leases if lease.fate == "committed"]
    if not leases:
        raise ServerError(
            f"no recorded hand-out of feed {name!r} fits first, last, trainer, steps and committed"
        )
    script = [lease.batch for lease in leases]
    _check(history, script, declaration, states, leases)
    served = dataclasses.replace(
        config,
        partitions=1,
    )
    directories = [*map(str, (state, *beside))]
    plain = Replay(directories, name, config.partitions, [[*batch] for batch in script], states)
    run = start_config(
        settings,
        [served],
        slab_bytes=0,
        index_directory=str(state / "index"),
        replay=[*plain],
    )
    return Server(run, settings)


def _chosen(history: FeedRecord, settings: ReplaySettings) -> list[HandOut]:
    every, steps = history.leases, settings.steps
    if settings.trainer is None:
        if steps is not None:
            raise ValueError("steps needs trainer: each trainer counts its own")
        first = _places("first", settings.first, every)
        last = _places("last", settings.last, every)
        return every[min(first, default=0) : max(last, default=-1) + 1]
    if settings.first is not None or settings.last is not None:
        raise ValueError("first and last are of all trainers: give them, or trainer and steps")
    if isinstance(steps, tuple):
        steps = "-".join(map(str, steps))
    return handed_to(str(settings.trainer), steps_named("steps", steps), every)


def _places(argument: str, text: str | None, leases: Sequence[HandOut]) -> Sequence[int]:
    """Return the places of a batch's hand-outs; those of all without a name."""
    if text is None:
        return range(len(leases))
    batch = batch_named(argument, text, leases)
    places = [at for at, lease in enumerate(leases) if lease.batch == batch]
    if not places:
        raise ValueError(f"no record tells of a hand-out of batch {batch}")
    return places


def _check(
    history: FeedRecord,
    script: Sequence[BatchId],
    declaration: Declaration,
    states: str,
    leases: Sequence[HandOut],
) -> None:
    """Raise ServerError where a batch of the script can not be served."""
    places = [history.place(batch) for batch in script]
    gone = [batch for batch, place in zip(script, places, strict=True) if place is None]
    if gone:
        raise ServerError(
            f"the rows of {len(gone)} of these batches are recorded no more, among them "
            f"{gone[0]}: the oldest go (record_bytes), so begin after it"
        )
    options: Any = declaration.shape.options
    if not options.get("initial_states") or states == "initial":
        return
    if not all(place and place.has_states for place in places):
        raise ServerError(_NEEDS_STATES.format(which="these batches"))
    trainers = {lease.trainer for lease in leases}
    if options["state_placement"] == "trainer" and (len(trainers) > 1 or leases[0].step > 1):
        raise ServerError(
            "the states of this feed stay with its trainers (state_placement='trainer'): what goes "
            "out is only what a trainer's lanes began with, so replay one trainer's session from "
            "its first step, or with states='initial'"
        )
