"""Steps through a log, from producers in processes of their own to a trainer, beside two peers.

    python -m tests.bench.log_peers [--episodes N] [--rounds N] [--directory DIR]

    steps      an episode of 440 steps of 100 bytes is pushed one step at a time …
    episodes   … or at once
    actors     256 actors in 8 processes, one step of each in turn: R2D2's load (headrace alone)

Headrace's trainer takes batches of 16 segments of 80 steps with 40 before them, and saves a state
of 256; Reverb's takes trajectories of 120 steps (an episode at once is one item there);
TransferQueue's takes samples as they come, a step or an episode each.  All is in memory, and each
step is trained once.  A round begins when the producers are connected, and ends when the trainer
has all; contestants take turns.  Peers run in environments of their own, and one that can not be
had is left out and said so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from .environments import Absent, Environments

STEPS, UNROLL, LEFT, BATCH = 440, 80, 40, 16
#: Processes of producers, and sequences that each has open, by mode.
PRODUCERS = {"steps": (1, 1), "episodes": (1, 1), "actors": (8, 32)}
OBS = np.random.default_rng(1).normal(size=(STEPS, 24)).astype(np.float32)
REWARD = OBS[:, 0].copy()
#: A contestant's address, then what waits until so many episodes are trained.
Serving = contextlib.AbstractContextManager[tuple[str, Callable[[int], None]]]


@contextlib.contextmanager
def headrace(mode: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    import headrace
    import headrace_server as hs

    features = {"obs": hs.sequence("float32", (24,)), "reward": hs.sequence("float32")}
    feed = hs.live("episodes", features).batch_sequences_with_states(
        None, ["obs", "reward"], [], None, {"h": hs.zeros((256,))}, UNROLL, BATCH, left=LEFT,
        allow_small_batch=True,
    )  # fmt: skip

    def train(episodes: int) -> None:
        steps = 0
        with headrace.connect(server.address) as batches:
            for batch in batches:
                batch.save_state("h", batch.state("h") + 1)
                steps += int(batch.length.sum())
                if steps == episodes * STEPS:
                    break

    with hs.run(feed) as server:
        yield server.address, train


def headrace_push(address: str, mode: str, name: str, episodes: int) -> Iterator[None]:
    import headrace

    _, actors = PRODUCERS[mode]
    with headrace.produce(address, log="episodes", name=name) as out:
        yield
        for first in range(0, episodes, actors):
            some = [out.open(f"{name}-{n}") for n in range(first, min(first + actors, episodes))]
            if mode == "episodes":
                some[0].extend({"obs": OBS, "reward": REWARD})
            for t in range(STEPS if mode != "episodes" else 0):
                for one in some:
                    one.append({"obs": OBS[t], "reward": REWARD[t]})
            for one in some:
                one.end()


@contextlib.contextmanager
def reverb(mode: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    import reverb
    import tensorflow as tf

    rows = (STEPS,) if mode == "episodes" else (UNROLL + LEFT,)
    shapes = {"obs": tf.TensorSpec((*rows, 24)), "reward": tf.TensorSpec(rows)}
    table = reverb.Table(
        "t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), max_size=10**7,
        rate_limiter=reverb.rate_limiters.MinSize(1), max_times_sampled=1, signature=shapes,
    )  # fmt: skip
    server = reverb.Server([table])
    address = f"localhost:{server.port}"

    def train(episodes: int) -> None:
        options = {"table": "t", "max_in_flight_samples_per_worker": 2 * BATCH}
        items = episodes * (1 if mode == "episodes" else (STEPS - LEFT) // UNROLL)
        samples = reverb.TrajectoryDataset.from_table_signature(address, **options)
        batches = iter(samples.batch(min(BATCH, items)))
        while items > 0:
            items -= int(next(batches).data["obs"].shape[0])

    yield address, train
    server.stop()


def reverb_push(address: str, mode: str, name: str, episodes: int) -> Iterator[None]:
    import reverb

    client = reverb.Client(address)
    client.server_info()
    yield
    with client.trajectory_writer(num_keep_alive_refs=UNROLL + LEFT) as writer:
        for _ in range(episodes):
            if mode == "episodes":
                writer.append({"obs": OBS, "reward": REWARD})
                whole = {name: column[-1] for name, column in writer.history.items()}
                writer.create_item("t", 1.0, whole)
                writer.end_episode(clear_buffers=True)
                continue
            for t in range(STEPS):
                writer.append({"obs": OBS[t], "reward": REWARD[t]})
                if t >= LEFT and (t + 1 - LEFT) % UNROLL == 0:
                    last = slice(-UNROLL - LEFT, None)
                    part = {name: column[last] for name, column in writer.history.items()}
                    writer.create_item("t", 1.0, part)
                    writer.flush(4)
            writer.end_episode(clear_buffers=True)
        writer.flush()


@contextlib.contextmanager
def transfer_queue(mode: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    import ray
    import transfer_queue as queue

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    queue.init()

    def train(episodes: int) -> None:
        left = episodes * (1 if mode == "episodes" else STEPS)
        while left > 0:
            keys = [*queue.kv_list("t").get("t", ())][: BATCH * UNROLL]
            with contextlib.suppress(ValueError):  # the fields of some have not come
                if keys:
                    queue.kv_batch_get(keys, "t")
                    queue.kv_clear(keys, "t")
                    left -= len(keys)

    yield ray.get_runtime_context().gcs_address, train
    queue.close()
    ray.shutdown()


def transfer_queue_push(address: str, mode: str, name: str, episodes: int) -> Iterator[None]:
    import ray
    import torch
    import transfer_queue as queue

    ray.init(address, log_to_driver=False, logging_level="error")
    queue.init()
    obs, reward = torch.from_numpy(OBS), torch.from_numpy(REWARD)
    yield
    for n in range(episodes):
        if mode == "episodes":
            queue.kv_put(f"{n}", "t", {"obs": obs, "reward": reward})
        else:
            for t in range(STEPS):
                queue.kv_put(f"{n}-{t}", "t", {"obs": obs[t], "reward": reward[t]})


CONTESTANTS: dict[str, tuple[Callable[[str], Serving], Callable[..., Iterator[None]]]] = {
    "headrace": (headrace, headrace_push),
    "Reverb": (reverb, reverb_push),
    "TransferQueue": (transfer_queue, transfer_queue_push),
}
#: Factors of the episodes of a round: contestants are to take some seconds each.
_MORE = {
    ("headrace", "episodes"): 4.0,
    ("Reverb", "episodes"): 4.0,
    ("TransferQueue", "steps"): 0.01,
    ("TransferQueue", "episodes"): 0.5,
}


def _round(name: str, mode: str, episodes: int) -> None:
    """Run one round in this process; print its steps in a second."""
    serve, _ = CONTESTANTS[name]
    with serve(mode) as (address, train), contextlib.ExitStack() as stack:
        producers = []
        for number in range(PRODUCERS[mode][0]):
            command = [sys.executable, "-m", __spec__.name, name, mode, str(episodes)]
            command += ["--push", address, "--name", f"actor-{number}"]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            producer = subprocess.Popen(command, text=True, **pipes)
            stack.enter_context(producer)
            producers.append(producer)
        for producer in producers:
            while producer.stdout.readline() != "ready\n":
                assert producer.poll() is None, "a producer has ended"
        began, spent = time.perf_counter(), _processor_s()
        for producer in producers:
            producer.stdin.write("go\n")
            producer.stdin.flush()
        train(episodes * len(producers))
        took, steps = time.perf_counter() - began, episodes * len(producers) * STEPS
        processor_us = (_processor_s() - spent) / steps * 1e6
        print(json.dumps({"rate": steps / took, "us": processor_us}), flush=True)


def _processor_s() -> float:
    """Return the processor time of this process and all its children so far."""
    mine = psutil.Process()
    times = [process.cpu_times() for process in (mine, *mine.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _push(name: str, mode: str, episodes: int, address: str, producer: str) -> None:
    pushing = CONTESTANTS[name][1](address, mode, producer, episodes)
    next(pushing)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in pushing:
        pass


def _rate(python: str, name: str, mode: str, episodes: int) -> tuple[float, float]:
    """Return steps in a second, and microseconds of the processor for each, of a round."""
    command = [python, "-m", __spec__.name, name, mode, str(episodes)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300,
                               env=environment)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Absent("no end within 300 s") from None
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"rate"')]
    if not lines:
        raise Absent(f"exit code {ended.returncode}: {ended.stderr[-300:]}")
    found = json.loads(lines[-1])
    return found["rate"], found["us"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps through a log, beside peers.")
    parser.add_argument("round", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--push", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    if given.round:
        name, mode, episodes = given.round
        if given.push:
            _push(name, mode, int(episodes), given.push, given.name)
        else:
            _round(name, mode, int(episodes))
        return
    environments = Environments(given.directory / "headrace-bench")
    load, lines = os.getloadavg()[0], []
    for mode, (processes, _) in PRODUCERS.items():
        rates: dict[str, list[tuple[float, float]]] = {}
        for _ in range(given.rounds):
            for name in CONTESTANTS if mode != "actors" else ["headrace"]:
                episodes = given.episodes * _MORE.get((name, mode), 1.0) / processes
                episodes = BATCH * max(1, round(episodes / BATCH))  # Reverb's batches are full
                try:
                    rate = _rate(environments.python(name), name, mode, episodes)
                    rates.setdefault(name, []).append(rate)
                except Absent as absent:
                    print(f"{name}, {mode}: left out, {absent}", file=sys.stderr)
        medians = {
            name: tuple(map(statistics.median, zip(*found, strict=True)))
            for name, found in rates.items()
        }
        ours = medians["headrace"]
        for name, (rate, us) in medians.items():
            lines.append(
                f"{mode:9} {name:14} {rate:10,.0f} steps/s {us:8.1f} us of the processor each; "
                f"headrace has {ours[0] / rate:.2f} of the rate, {ours[1] / us:.2f} of the time"
            )
    print("\n".join(lines))
    print(
        f"medians of {given.rounds} rounds; load at the start {load:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
