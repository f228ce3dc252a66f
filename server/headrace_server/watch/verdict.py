"""The verdict on a feed: its bottleneck in one sentence, the first of these that applies.

failed, ended, draining, no trainer ─► nothing is to be judged
the disk ─► trainers wait: for workers, for room, for states ─► trainers set the pace
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..process.statuses import FeedStatus, Rates, VerdictStatus

#: Trainers that wait for less than this part of their time are fed well …
_WELL = 0.05
#: … and beyond this they starve.
_STARVES = 0.3
_MOST = 0.5
#: The part that holds the others up, by what workers spend most of their time on …
_WHERE = {"work": "workers", "slab": "slab", "states": "trainers"}
#: … and why.
_WHY = {
    "workers": "the workers are busy reading and shaping. More workers, a faster source or cheaper "
    "functions would help.",
    "slab": "the shared memory of the workers is full of batches that trainers still read.",
    "trainers": "the next segments need states that trainers hold. More sequences in flight "
    "(capacity) would help.",
}


def verdict(
    feed: FeedStatus,
    rates: Rates,
    shares: Sequence[Mapping[str, float]],
    draining: bool = False,
    of: str = "",
) -> VerdictStatus:
    """Judge a feed.

    ``level`` is good, slow, bad or idle; ``where`` is the part that holds the others up: workers,
    slab, trainers, store, leases, or "" where nothing does.  ``rates`` are the feed's, ``shares``
    what its workers spend their time on; ``of`` says what trainers wait for, after how long.
    """
    settled = _settled(feed, draining)
    if settled is not None:
        return settled
    stall = rates.get("stall")
    if stall is None:
        return _judged("idle", "", "Not long enough under way to judge.")
    part = f"{100 * stall:.0f} %"
    if stall < _WELL:
        text = f"Trainers are fed: they wait {part} of their time, and set the pace."
        return _judged("good", "trainers", text)
    where, why = _why(feed, shares)
    level = "bad" if stall > _STARVES else "slow"
    return _judged(level, where, f"Trainers wait {part} of their time{of}: {why}")


def _judged(level: str, where: str, text: str) -> VerdictStatus:
    return {"level": level, "where": where, "text": text}


def _settled(feed: FeedStatus, draining: bool) -> VerdictStatus | None:
    if feed["state"] == "failed" and feed["failure"]:
        return _judged("bad", "", f"The feed has failed: {feed['failure'][-1]}")
    faults = feed["store"]["faults"] if "store" in feed else []
    if faults:
        return _judged("bad", "store", f"Nothing can be committed: {faults[0]}")
    if feed["state"] == "ended":
        return _judged("idle", "", "All batches are committed.")
    if feed["state"] == "opening":
        return _judged("idle", "", "The workers are opening the source.")
    if draining:
        return _judged("idle", "", "The server drains: nothing more is handed out.")
    if not feed["trainers"]:
        return _judged("idle", "", "No trainer is connected.")
    return None


def _why(feed: FeedStatus, shares: Sequence[Mapping[str, float]]) -> tuple[str, str]:
    for what, where in _WHERE.items():
        if sum(share.get(what) or 0.0 for share in shares) > _MOST * len(shares):
            return where, _WHY[where]
    return "leases", f"{feed['waiting']}."
