"""Answers of several owners to one order, joined to that of the whole server.

    owner 0: its partitions, its sessions ─┐
    owner 1: …                            ─┼─► gathered(order, answers)
    owner 2: …                            ─┘

Each owner counts its own partitions, so counts are added.  A trainer has a session with each owner
and appears once, by its nonce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..process.config import MOST_FOUND, MOST_TRAINERS

__all__ = ["added", "gathered"]

_Told = Mapping[str, Any]

#: Length of the text on what a feed waits for.
_LONGEST_WAITING = 1000
#: States of a feed: the first that an owner is in is that of the whole feed.
_STATES = ("failed", "opening", "closing", "open", "ended")


def gathered(order: str, answers: Sequence[_Told]) -> dict[str, Any]:
    """The answer of the server to an order, from those of all its owners."""
    if order == "stats":
        names = answers[0]["feeds"]
        feeds = {name: _feed([answer["feeds"][name] for answer in answers]) for name in names}
        return {"feeds": feeds, "access": _access(answers)}
    if order == "users":
        return {"users": sorted({user for answer in answers for user in answer["users"]})}
    if order == "inspect":
        found = [one for answer in answers for one in answer["found"]]
        unheard = [partition for answer in answers for partition in answer["unheard"]]
        return {"found": found[:MOST_FOUND], "unheard": sorted(unheard)}
    return dict(answers[0])


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts by name."""
    total: dict[str, int] = {}
    for some in counts:
        for name, n in some.items():
            total[name] = total.get(name, 0) + n
    return total


def _feed(told: Sequence[_Told]) -> dict[str, Any]:
    """One feed, from what each owner tells of its part."""
    trainers, more = _trainers([of["trainers"] for of in told])
    whole = dict(told[0])
    for name in ("batches", "rows", "redelivered", "stale", "expired"):
        whole[name] = sum(of[name] for of in told)
    for name in ("made", "refused", "dropped", "standing"):
        whole[name] = added(of[name] for of in told)
    segments = [of["segments"] for of in told if "segments" in of]
    if segments:
        whole["segments"] = added(segments)
    whole |= {
        "padding": _lists(of["padding"] for of in told),
        "classes": _classes(of["classes"] for of in told),
        "state": min((of["state"] for of in told), key=_STATES.index),
        "failure": next((of["failure"] for of in told if of["failure"] is not None), None),
        "waiting": "; ".join(dict.fromkeys(of["waiting"] for of in told))[:_LONGEST_WAITING],
        "partitions": sorted(
            (one for of in told for one in of["partitions"]), key=lambda one: one["partition"]
        ),
        "trainers": trainers,
        "trainers_more": more + max(of["trainers_more"] for of in told),
    }
    return whole


def _lists(told: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    total: dict[str, list[int]] = {}
    for some in told:
        for name, counts in some.items():
            before = total.get(name) or [0] * len(counts)
            total[name] = [a + b for a, b in zip(before, counts, strict=True)]
    return total


def _classes(told: Iterable[_Told]) -> dict[str, Any]:
    """Counters by class; where targets changed, each partition's own list."""
    every = list(told)
    counts = _lists({k: v for k, v in some.items() if k != "changes"} for some in every)
    changes = [one for some in every for one in some.get("changes", ())]
    return {**counts, "changes": changes} if changes else {**counts}


def _trainers(told: Iterable[Sequence[_Told]]) -> tuple[list[dict[str, Any]], int]:
    """Each trainer once, with the sums of its sessions; and how many there are beyond the most."""
    sessions: dict[str, list[_Told]] = {}
    for some in told:
        for one in some:
            sessions.setdefault(one["nonce"], []).append(one)
    joined = sorted(map(_trainer, sessions.values()), key=lambda one: one["trainer"])
    return joined[:MOST_TRAINERS], len(joined[MOST_TRAINERS:])


def _trainer(sessions: Sequence[_Told]) -> dict[str, Any]:
    first = min(sessions, key=lambda one: one["trainer"])
    whole = {name: value for name, value in first.items() if name != "nonce"}
    for name in ("window", "leases", "batches", "rows", "bytes", "committed", "stale"):
        if name in whole:
            whole[name] = sum(one.get(name, 0) for one in sessions)
    whole["refused"] = added(one["refused"] for one in sessions)
    whole["local"] = all(one["local"] for one in sessions)
    whole["silent_s"] = min(one["silent_s"] for one in sessions)
    for name in ("blocked_s", "busy_s"):  # the trainer says the same to all
        whole[name] = max(one[name] for one in sessions)
    return whole


def _access(answers: Sequence[_Told]) -> dict[str, Any]:
    """Who is let in, and who was refused by the front, which all owners are told, and by each."""
    told = [answer["access"] for answer in answers]
    here = [answer.get("refused_here", {}) for answer in answers]
    by_front: dict[str, int] = {}
    for access, own in zip(told, here, strict=True):
        for reason, n in access["refused"].items():
            by_front[reason] = max(by_front.get(reason, 0), n - own.get(reason, 0))
    refused = {reason: n for reason, n in added([by_front, *here]).items() if n}
    present: dict[str, int] = {}
    for access in told:
        for name, n in access["present"].items():
            present[name] = max(present.get(name, 0), n)
    return {**told[0], "refused": refused, "present": present}
