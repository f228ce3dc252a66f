"""Which comparisons there are, and what each aims at.

Those of one workload stand together, since contestants live on from one to the next.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from . import sequences, skewed, states, workloads
from .pairs import Comparison

_HALF = 0.5  # of the peer's processor time, at most


def compiled() -> bool:
    """Some of the server is machine code: more is aimed at then."""
    found = importlib.util.find_spec("headrace_server")
    places = (found.submodule_search_locations if found else None) or []
    return any(any(Path(place).rglob("*.so")) for place in places)


def _w1(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    base = Comparison("W1", ours, peer, aim, workloads.BATCH, workloads.NBYTES)
    return replace(base, **more)


def _w2(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    base = Comparison("W2", ours, peer, aim, sequences.BATCH, sequences.NBYTES)
    return replace(base, **more)


def _sampling(ours: str, peer: str, **more: float | bool) -> Comparison:
    base = Comparison("sampling", ours, peer, None, skewed.BATCH, skewed.NBYTES, skewed.READ)
    return replace(base, **more)


def _w3(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    base = Comparison("W3", ours, peer, aim, workloads.IMAGE_BATCH, workloads.IMAGE_BYTES)
    return replace(base, **more)


def _w4(ours: str, peer: str, aim: float | None = None, **more: float | bool) -> Comparison:
    return replace(Comparison("W4", ours, peer, aim, states.BATCH, states.NBYTES), **more)


def _to_ready(order: str, p99_us: float | None = None) -> Comparison:
    ours = f"headrace save to ready, {order}"
    return Comparison("W4 latency", ours, _ECHO, latency=True, p99_us=p99_us)


_SERVICE = "tf.data service"
_BARRIER = "Barrier in the graph"
_ECHO = "ZeroMQ round trip"

ALL = [
    replace(
        _w1("headrace first epoch", "tf.data service first epoch", 1.5), workload="W1 first epoch"
    ),
    _w1("headrace shm tf", _SERVICE, 5.0 if compiled() else 3.0, cpu=_HALF),
    _w1("headrace shm tf, prefetch 2", _SERVICE, 5.0 if compiled() else 3.0, cpu=_HALF),
    _w1("headrace from Arrow", _SERVICE, 10.0),
    _w1("headrace from Parquet", _SERVICE, 4.0),
    _w1("headrace shm numpy", _SERVICE, long=True),
    _w1("headrace tcp tf", _SERVICE),
    _w1("headrace shm tf", "tf.data in process"),
    _w1("headrace shm tf", "tf.data service by record", 15.0),
    _w1("headrace shm tf", "tf.data in process by record", long=True),
    _w1("headrace shm tf", "torch DataLoader, 1 worker", long=True),
    _w1("headrace shm tf", "torch DataLoader, 2 workers", 4.0),
    _w1("headrace shm tf", "Grain, 1 worker", long=True),
    _w1("headrace shm tf", "Grain, 2 workers", 12.0),
    _w1("headrace shm tf", "tensorpack, 1 worker", long=True),
    _w1("headrace shm tf", "tensorpack, 2 workers"),
    _w2("headrace sequences", "tf.data service sequences", 5.0, cpu=_HALF),
    _w2("headrace sequences from Arrow", "tf.data service sequences", 8.0),
    _w2("headrace sequences tcp", "tf.data service sequences", long=True),
    _w2("headrace sequences", "tf.data service sequences by record", long=True),
    _w2("headrace sequences", "tf.data in process sequences"),
    _w2("headrace sequences", "torch DataLoader sequences, 1 worker", long=True),
    _w2("headrace sequences", "torch DataLoader sequences, 2 workers", 3.0),
    _w2("headrace sequences", "Grain sequences, 1 worker", long=True),
    _w2("headrace sequences", "Grain sequences, 2 workers"),
    _w2("headrace sequences", "tensorpack sequences, 1 worker", long=True),
    _w2("headrace sequences", "tensorpack sequences, 2 workers"),
    _sampling("headrace stratified, known", "tf.data service resample, known"),
    _sampling("headrace stratified, known", "tf.data in process resample, known", long=True),
    _sampling("headrace stratified, known", "tf.data in process mask by hand", long=True),
    _sampling("headrace stratified, estimated", "tf.data service resample, estimated", long=True),
    _sampling(
        "headrace stratified, estimated", "tf.data in process resample, estimated", long=True
    ),
    _sampling("headrace rejection", "tf.data service resample, known", long=True),
    _sampling("headrace rejection", "tf.data service mask by hand"),
    _w3("headrace images shm", "tf.data service images", 8.0, cpu=_HALF),
    _w3("headrace images shm", "torch DataLoader images, 1 worker", long=True),
    _w3("headrace images shm", "torch DataLoader images, 2 workers"),
    _w3("headrace images shm", "Grain images, 1 worker", long=True),
    _w3("headrace images shm", "Grain images, 2 workers", 5.0),
    _w3("headrace images shm", "tensorpack images, 1 worker", long=True),
    _w3("headrace images shm", "tensorpack images, 2 workers", 4.0),
    _w3("headrace images shm", "Reverb images", long=True),
    _w3("headrace images shm", "shared-memory ring", 0.8),
    _w3("headrace images tcp", "tf.data service images", long=True),
    _w3("headrace images tcp", "raw TCP", 0.7),
    _w4("headrace arrival", _BARRIER, 1.5),
    _w4("headrace arrival, two in flight", _BARRIER, 4.0),
    _w4("headrace arrival, three in flight", _BARRIER, long=True),
    _w4("headrace lanes", _BARRIER, 6.0),
    _w4("headrace lanes, prefetch 8", _BARRIER, 6.0),
    _w4("headrace arrival", f"{_BARRIER}, one state", long=True),
    _w4("headrace arrival, two in flight", "Reverb, states inserted", 40.0),
    _w4("headrace arrival, durable", "headrace arrival", 0.7),
    _w4("headrace arrival, durable, two in flight", "headrace arrival, two in flight", 0.7),
    _w4("headrace arrival, two in flight", "tf.data windows", long=True),
    _w4("headrace lanes", "tf.data windows"),
    _w4("headrace arrival numpy", _BARRIER, long=True),
    _w4("headrace arrival numpy, two in flight", _BARRIER, long=True),
    _w4("headrace lanes numpy", _BARRIER, long=True),
    _w4("headrace arrival tcp", _BARRIER, long=True),
    _w4("headrace arrival tcp, two in flight", _BARRIER, long=True),
    _w4("headrace lanes tcp", _BARRIER, long=True),
    _to_ready("arrival", 1000.0),
    _to_ready("lanes"),
    Comparison("latency", "headrace one at a time", _ECHO, latency=True),
]
#: Whose memory is looked at over epochs of W1.
MEMORY = ["headrace shm tf"]


def comparisons(long: bool, only: str) -> list[Comparison]:
    """Those that are wanted; who names one gets it, long or not."""
    return [c for c in ALL if (long or only or not c.long) and only in c.title]
