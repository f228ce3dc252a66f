"""Which comparisons there are, and what each aims at.

Those of one workload stand together, since contestants live on from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import sequences, states, workloads
from .environments import EARLIER
from .pairs import Comparison


def _w1(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    base = Comparison("W1", ours, peer, aim, workloads.BATCH, workloads.NBYTES)
    return replace(base, **more)


def _w2(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    base = Comparison("W2", ours, peer, aim, sequences.BATCH, sequences.NBYTES)
    return replace(base, **more)


def _packed(peer: str, aim: float) -> Comparison:
    steps = sequences.PACKED_ROWS * sequences.PACKED_STEPS
    return Comparison("W2 packed", "headrace packed", peer, aim, steps, steps * 4)


def _w3(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    base = Comparison("W3", ours, peer, aim, workloads.IMAGE_BATCH, workloads.IMAGE_BYTES)
    return replace(base, **more)


def _w4(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    return replace(Comparison("W4", ours, peer, aim, states.BATCH, states.NBYTES), **more)


def _since(
    make: Callable[[str, str, float], Comparison], ours: str, aim: float = 0.98
) -> Comparison:
    """Beside an earlier headrace."""
    return make(ours, f"{EARLIER} {ours}", aim)


_SERVICE = "tf.data service"
_BARRIER = "Barrier in the graph"
_ECHO = "ZeroMQ round trip"
_TWO = "headrace arrival, two in flight"

ALL = [
    replace(
        _w1("headrace first epoch", "tf.data service first epoch", 3.0), workload="W1 first epoch"
    ),
    _w1("headrace default settings", _SERVICE, 3.5, cpu=0.3),
    _w1("headrace fit", f"{_SERVICE} fit", 1.3),
    _w1("headrace Lightning", "torch DataLoader Lightning, 2 workers", 1.0),
    _w1("headrace from Arrow", _SERVICE, 6.0),
    _w1("headrace from Parquet", _SERVICE, 3.0),
    _since(_w1, "headrace shm tf"),
    _since(_w1, "headrace from Arrow"),
    _since(_w1, "headrace tcp tf"),
    _w1("headrace shm tf", "tf.data service by record", 15.0),
    _w1("headrace shm tf", "torch DataLoader, 2 workers", 12.0),
    _w1("headrace shm tf", "Grain, 2 workers", 8.0),
    _w1("headrace mixed", "Grain mixed", 3.0),
    _w1("headrace mixed", "Grain mixed, 2 workers", 3.0),
    replace(
        _w1("headrace, 8 trainers", "headrace, 1 trainer", 0.9, shares=0.1), workload="W1 trainers"
    ),
    _w2("headrace sequences", f"{_SERVICE} sequences", 6.0, cpu=0.3),
    _w2("headrace sequences from Arrow", f"{_SERVICE} sequences", 9.0),
    _since(_w2, "headrace sequences"),
    _since(_w2, "headrace sequences from Arrow"),
    _since(_w2, "headrace sequences tcp"),
    _w2("headrace sequences", "torch DataLoader sequences, 2 workers", 3.0),
    _packed("Grain first fit", 3.0),
    _packed("Grain first fit, 2 workers", 3.0),
    _w3("headrace images shm", f"{_SERVICE} images", 8.0, cpu=0.3),
    _w3("headrace images shm", "Grain images, 2 workers", 4.0),
    _w3("headrace images shm", "shared-memory ring", 0.9),
    _w3("headrace images tcp", "raw TCP", 0.75),
    _since(_w3, "headrace images shm"),
    _since(_w3, "headrace images tcp"),
    _w4("headrace arrival", _BARRIER, 2.5),
    _w4(_TWO, _BARRIER, 4.0),
    _w4("headrace lanes", _BARRIER, 4.0),
    _w4("headrace lanes, prefetch 8", _BARRIER, 5.0),
    _w4("headrace arrival, durable", "headrace arrival", 0.85),
    _w4("headrace arrival, durable, process", "headrace arrival", 0.85),
    _w4("headrace arrival, durable, two in flight", _TWO, 0.7),
    _w4("headrace lanes", "tf.data windows", 1.0),
    _since(_w4, "headrace arrival"),
    _since(_w4, _TWO),
    _since(_w4, "headrace lanes"),
    _since(_w4, "headrace lanes, prefetch 8"),
    _since(_w4, "headrace arrival tcp"),
    _since(_w4, "headrace arrival tcp, two in flight"),
    _since(_w4, "headrace lanes tcp"),
    Comparison("W4 latency", "headrace save to ready", _ECHO, latency=True, p99_us=800.0),
]


def comparisons(only: str) -> list[Comparison]:
    """Return those whose title contains this."""
    return [c for c in ALL if only in c.title]
