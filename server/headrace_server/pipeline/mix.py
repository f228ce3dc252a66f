"""``hs.mix``: a pipeline whose examples are drawn from several others, by weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from headrace_proto.errors import near

from .argument_checks import MAX_COUNT, check_kind, checked_int, checked_number
from .builder import Pipeline, check_alike
from .declaration import Source, Stage
from .signatures import checking

Weights = Mapping[str, float]
#: Every example has a time for each source, and trainers get all names in one header.
_MAX_SOURCES = 256
#: Bytes of a name of a source.
_MAX_NAME = 100
#: The largest weight: far below it sums and quotients of weights are finite.
_MAX_WEIGHT = 1e100


@checking
def mix(
    sources: Mapping[str, Pipeline],
    weights: Weights | Sequence[tuple[int, Weights]],
    seed: int = 0,
    *,
    stop: Literal["all", "first", "never"] = "all",
    by: Literal["example", "batch"] = "example",
) -> Pipeline:
    """Draw each example from one of several sources, with a chance in proportion to its weight.

    Each source is a pipeline with its own ``skip``, ``take``, ``concat``, ``shuffle`` and
    ``repeat``; all have the same columns, which ``map`` and ``select`` of each may make.  Other
    stages and the shape follow the mix.  ``batch.source`` has the number of each row's source, in
    the order of ``sources``.

    ``weights`` names every source.  A schedule is a list of ``(number, weights)``: the weights that
    hold from that example of the mix on, counted from 0 over all partitions.  The draw is a
    function of ``seed`` and of the example's number.

    ``stop="all"``: a source that ends is left out, and the mix ends with the last source that has a
    weight.  ``"first"``: the mix ends where an example is drawn from a source that has no more.
    ``"never"``: a source that ends begins again.  Each partition draws from its share of each
    source.

    With ``by="batch"`` every batch has rows of one source: ``.batch``, and each bucket, gathers
    the examples of each source apart.  ``batch.bucket`` is then the bucket times the number of
    sources, plus the number of the source.
    """
    _check_sources(sources)
    names = list(sources)
    if stop == "never" and (logs := [name for name in names if sources[name]._source.logs]):
        raise ValueError(
            f"stop='never' begins each source again that ends, and {logs[0]!r} has a log (hs.live),"
            " which is gone through once: give stop='all' or 'first'"
        )
    parts = [one._as_part("a mix", f"sources[{name!r}]") for name, one in sources.items()]
    options: dict[str, Any] = {
        "sources": parts,
        "names": names,
        "orders": [asdict(pipeline._order) for pipeline in sources.values()],
        "seed": seed,
        "stop": stop,
    }
    stage = Stage("mix", {"names": names, "by": by, "schedule": _schedule(weights, names)})
    paths = tuple(path for part in parts for path in part.paths)
    return Pipeline(Source("mix", paths, None, options), _stages=(stage,))


def _check_sources(sources: Mapping[str, Pipeline]) -> None:
    """Raise TypeError or ValueError where something can not be a source of a mix."""
    check_kind("sources", sources, Mapping, "a dict of names to pipelines")
    if not 0 < len(sources) <= _MAX_SOURCES:
        raise ValueError(f"sources has {len(sources)} entries; a mix has 1 to {_MAX_SOURCES}")
    for name, pipeline in sources.items():
        what = f"sources[{name!r}]"
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _MAX_NAME:
            raise TypeError(f"{what:.200}: a source's name is a string of 1 to {_MAX_NAME} bytes")
        check_kind(what, pipeline, Pipeline, "a pipeline without a shape")
        if not pipeline._order.across_batches:
            raise ValueError(
                f"{what} has repeat(across_batches=False): no batch ends with the epoch of a "
                "source; call repeat() so on the mix, or leave across_batches out"
            )
    check_alike("a mix", sources)


def _schedule(weights: Any, names: list[str]) -> list[list[Any]]:
    """Return the weights of all sources in their order, each with its first example."""
    check_kind("weights", weights, (Mapping, list, tuple), "a dict of names to numbers, or a list")
    if isinstance(weights, Mapping):
        return [[0, weights_of("weights", weights, names)]]
    schedule: list[list[Any]] = []
    for i, entry in enumerate(weights):
        what, least = f"weights[{i}]", schedule[-1][0] + 1 if schedule else 0
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise TypeError(f"{what}={entry!r:.80} is not a pair of an example's number and a dict")
        start = checked_int(f"{what}[0]", entry[0], least, MAX_COUNT)
        if start and not schedule:
            raise ValueError(f"{what}[0]={start}: the first weights hold from example 0 on")
        schedule.append([start, weights_of(f"{what}[1]", entry[1], names)])
    if not schedule:
        raise ValueError("weights=[] has no entry; the first one is (0, {name: weight, …})")
    return schedule


def weights_of(argument: str, weights: Any, names: list[str]) -> list[float]:
    """Return the weight of each source."""
    check_kind(argument, weights, Mapping, "a dict of names to numbers")
    for name in weights:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise ValueError(
                f"{argument} has {name!r}, which is no source: they are {known}{near(name, names)}"
            )
    for name in names:
        if name not in weights:
            raise ValueError(f"{argument} lacks the source {name!r}; a weight of 0 leaves it out")
    found = [checked_number(f"{argument}[{n!r}]", weights[n], 0, _MAX_WEIGHT) for n in names]
    if not any(found):
        raise ValueError(f"{argument}={weights!r:.80} gives no source a weight; one is more than 0")
    return found
