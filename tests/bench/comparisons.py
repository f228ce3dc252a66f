"""Which comparisons there are, and what each aims at."""

from __future__ import annotations

from . import sequences, skewed, states, workloads
from .contestants import CONTESTANTS
from .pairs import Comparison

_W1 = workloads.BATCH
_W2 = sequences.BATCH
_W3 = workloads.IMAGE_BATCH


def _sampling(ours: str, peer: str, quick: bool = True) -> Comparison:
    return Comparison("sampling", ours, peer, None, skewed.BATCH, quick=quick, read=skewed.READ)


_BARRIER = "Barrier in the graph"


def _states(ours: str, peer: str, aim: float | None = None, quick: bool = True) -> Comparison:
    return Comparison("W4", ours, peer, aim, states.BATCH, quick=quick)


def _to_ready(order: str) -> Comparison:
    ours = f"headrace save to ready, {order}"
    return Comparison("W4 latency", ours, "ZeroMQ round trip", latency=True)


ALL = [
    Comparison("W1 first epoch", "headrace first epoch", "tf.data service first epoch", 1.5, _W1),
    Comparison("W1", "headrace shm tf", "tf.data service", 3.0, _W1),
    Comparison("W1", "headrace shm tf, prefetch 16", "tf.data service", 3.0, _W1),
    Comparison("W1", "headrace shm numpy", "tf.data service", None, _W1, quick=False),
    Comparison("W1", "headrace tcp tf", "tf.data service", None, _W1),
    Comparison("W1", "headrace shm tf", "tf.data in process", None, _W1),
    Comparison("W1", "headrace shm tf", "tf.data service by record", 15.0, _W1),
    Comparison("W1", "headrace shm tf", "tf.data in process by record", None, _W1, quick=False),
    Comparison("W1", "headrace shm tf", "torch DataLoader, 2 workers", 4.0, _W1),
    Comparison("W2", "headrace sequences", "tf.data service sequences", 5.0, _W2),
    Comparison("W2", "headrace sequences", "tf.data service sequences by record", None, _W2),
    Comparison("W2", "headrace sequences", "tf.data in process sequences", None, _W2),
    Comparison("W2", "headrace sequences tcp", "tf.data service sequences", None, _W2, quick=False),
    Comparison("W2", "headrace sequences from Arrow", "tf.data service sequences", 8.0, _W2),
    _sampling("headrace stratified, known", "tf.data service resample, known"),
    _sampling("headrace stratified, known", "tf.data in process resample, known", False),
    _sampling("headrace stratified, estimated", "tf.data service resample, estimated"),
    _sampling("headrace stratified, estimated", "tf.data in process resample, estimated", False),
    _sampling("headrace rejection", "tf.data service resample, known", False),
    _sampling("headrace rejection", "tf.data service mask by hand"),
    _sampling("headrace stratified, known", "tf.data in process mask by hand"),
    Comparison("W3", "headrace images shm", "tf.data service images", 8.0, _W3),
    Comparison("W3", "headrace images shm", "shared-memory ring", 0.8, _W3),
    Comparison("W3", "headrace images tcp", "tf.data service images", None, _W3, quick=False),
    Comparison("W3", "headrace images tcp", "raw TCP", 0.7, _W3),
    _states("headrace arrival", _BARRIER, 1.5),
    _states("headrace arrival, two in flight", _BARRIER, 4.0),
    _states("headrace arrival, three in flight", _BARRIER),
    _states("headrace lanes", _BARRIER, 6.0),
    _states("headrace arrival", f"{_BARRIER}, one state", quick=False),
    _states("headrace arrival, two in flight", "tf.data windows", quick=False),
    _states("headrace lanes", "tf.data windows"),
    _states("headrace arrival numpy", _BARRIER),
    _states("headrace arrival numpy, two in flight", _BARRIER, quick=False),
    _states("headrace lanes numpy", _BARRIER),
    _states("headrace arrival tcp", _BARRIER, quick=False),
    _states("headrace arrival tcp, two in flight", _BARRIER, quick=False),
    _states("headrace lanes tcp", _BARRIER, quick=False),
    _to_ready("arrival"),
    _to_ready("lanes"),
    Comparison("latency", "headrace one at a time", "ZeroMQ round trip", None, _W1, latency=True),
]


def comparisons(quick: bool, only: str) -> list[Comparison]:
    """Those that this machine can run and the caller wants."""
    return [
        c
        for c in ALL
        if c.ours in CONTESTANTS
        and c.peer in CONTESTANTS
        and (c.quick or not quick)
        and only in f"{c.workload}: {c.ours} / {c.peer}"
    ]
