"""The verdict on a feed: its bottleneck in one sentence, the first of these that applies.

failed, ended, draining, no trainer ─► nothing is to be judged
the disk ─► trainers wait: for workers, for room, for states ─► trainers set the pace
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Verdict", "verdict"]

#: Trainers that wait for less than this part of their time are fed well …
_WELL = 0.05
#: … and beyond this they starve.
_STARVES = 0.3
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """``level`` is good, slow, bad or idle; ``where`` is the part that holds the others up."""

    level: str
    where: str  # "workers", "slab", "trainers", "store", "leases", or "" where nothing does
    text: str


def verdict(
    feed: Mapping[str, Any],
    rates: Mapping[str, Any],
    shares: Sequence[Mapping[str, float]],
    draining: bool = False,
) -> Verdict:
    """``rates`` are the feed's, ``shares`` what its workers spend their time on."""
    settled = _settled(feed, draining)
    if settled is not None:
        return settled
    stall = rates.get("stall")
    if stall is None:
        return Verdict("idle", "", "Not long enough under way to judge.")
    part = f"{100 * stall:.0f} %"
    if stall < _WELL:
        text = f"Trainers are fed: they wait {part} of their time, and set the pace."
        return Verdict("good", "trainers", text)
    where, why = _why(feed, shares)
    level = "bad" if stall > _STARVES else "slow"
    return Verdict(level, where, f"Trainers wait {part} of their time: {why}")


def _settled(feed: Mapping[str, Any], draining: bool) -> Verdict | None:
    if feed["state"] == "failed":
        return Verdict("bad", "", f"The feed has failed: {feed['failure'][1]}")
    faults = feed.get("store", {}).get("faults")
    if faults:
        return Verdict("bad", "store", f"Nothing can be committed: {faults[0]}")
    if feed["state"] == "ended":
        return Verdict("idle", "", "All batches are committed.")
    if feed["state"] == "opening":
        return Verdict("idle", "", "The workers are opening the source.")
    if draining:
        return Verdict("idle", "", "The server drains: nothing more is handed out.")
    if not feed["trainers"]:
        return Verdict("idle", "", "No trainer is connected.")
    return None


def _why(feed: Mapping[str, Any], shares: Sequence[Mapping[str, float]]) -> tuple[str, str]:
    if shares:
        names = {name for share in shares for name in share}
        mean = {n: sum(share.get(n) or 0.0 for share in shares) / len(shares) for n in names}
        if mean.get("work", 0.0) > _MOST:
            return "workers", (
                "the workers are busy reading and shaping. More workers, a faster source or "
                "cheaper functions would help."
            )
        if mean.get("slab", 0.0) > _MOST:
            return "slab", (
                "the shared memory of the workers is full of batches that trainers still read."
            )
        if mean.get("states", 0.0) > _MOST:
            return "trainers", (
                "the next segments need states that trainers hold. More sequences in flight "
                "(capacity) would help."
            )
    return "leases", f"{feed['waiting']}."
