"""Groups: rows that must be read at once, where a stage computes over neighbours of the source.

    weighted_resample(group=8)          a mean over 8 examples     ─┐
    map(vectorized=True, seed=7)        one draw for 256           ─┴─► every read is one group

A partition's reads then end at multiples of the group, wherever it was resumed.  So all stages of a
pipeline have the same one, and shapes that bound a read must have room for it.
"""

from __future__ import annotations

from .declaration import Shape, Stage

#: Examples over which a mean of weights moves, where a budget and no size ends batches.
_WEIGHTED_AT_ONCE = 32
#: Examples of one draw of a vectorized map with a seed: enough for whole arrays to pay.
_DRAWN_AT_ONCE = 256


def grouped(stages: tuple[Stage, ...], shape: Shape) -> tuple[Stage, ...]:
    """Return the stages with their groups; ValueError where these differ or do not fit."""
    stages = tuple(_weighted(stage, shape) for stage in stages)
    groups = {stage.options["group"] for stage in stages if stage.kind == "weighted_resample"}
    if len(groups) > 1:
        raise ValueError(
            f"weighted_resample() is called with groups of {sorted(groups)}: what is read at once "
            "is one group, so they must be alike"
        )
    group, bound = max(groups, default=0), shape.read_bound()
    if bound is not None and group > bound:
        raise ValueError(
            f"weighted_resample() reads group={group} examples at once, and bucket_capacities or "
            f"max_examples_in_flight let at most {bound} in: give a smaller group, or raise them"
        )
    drawn = group or min(_DRAWN_AT_ONCE, bound or _DRAWN_AT_ONCE)
    return tuple(
        Stage(stage.kind, {**stage.options, "group": drawn})
        if stage.options.get("vectorized") and "seed" in stage.options
        else stage
        for stage in stages
    )


def _weighted(stage: Stage, shape: Shape) -> Stage:
    """Return the stage; give a weighted resampling without a group the batch size, if any."""
    if stage.kind != "weighted_resample" or stage.options["group"] is not None:
        return stage
    sizes = shape.options.get("batch_sizes") or [shape.options["batch_size"]]
    known = [size for size in sizes if size is not None]
    bound = shape.read_bound() or _WEIGHTED_AT_ONCE
    group = max(known, default=min(_WEIGHTED_AT_ONCE, bound))
    return Stage(stage.kind, {**stage.options, "group": group})
