"""Steps through a log, from producers in processes of their own to a trainer, beside two peers.

    python -m tests.bench.log_peers [--episodes N] [--rounds N] [--directory DIR]

    steps      an episode of 440 steps of 100 bytes is pushed one step at a time …
    episodes   … or at once
    actors     256 actors in 8 processes, one step of each in turn: R2D2's load (headrace alone)
    paced      one step each 2 ms, each a segment: how long after its append a trainer has it,
               where the log is on a disk and outlives any process (headrace alone)

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from .environments import Absent, Environments

STEPS, UNROLL, LEFT, BATCH = 440, 80, 40, 16
#: Processes of producers, and sequences that each has open, by mode.
PRODUCERS = {"steps": (1, 1), "episodes": (1, 1), "actors": (8, 32), "paced": (1, 1)}
#: Modes of headrace alone, with what R2D2's actors push and its learner trains in a second.
ALONE = {"actors": "; R2D2's load is 66,000 pushed, 25,600 trained", "paced": ""}
PACE_S = 0.002
OBS = np.random.default_rng(1).normal(size=(STEPS, 24)).astype(np.float32)
REWARD = OBS[:, 0].copy()
#: A contestant's address, then what waits until so many episodes are trained, and may return how
#: long some steps took to the trainer.
Training = Callable[[int], list[float] | None]
Serving = contextlib.AbstractContextManager[tuple[str, Training]]


@contextlib.contextmanager
def headrace(mode: str) -> Iterator[tuple[str, Training]]:
    import headrace
    import headrace_server as hs

    features = {"obs": hs.sequence("float32", (24,)), "reward": hs.sequence("float32")}
    unroll, size, left = UNROLL, BATCH, LEFT
    if mode == "paced":
        features, unroll, size, left = {"at": hs.sequence("float64")}, 1, 1, 0
    feed = hs.live("episodes", features).batch_sequences_with_states(
        None, [*features], [], None, {"h": hs.zeros((256,))}, unroll, size, left=left,
        allow_small_batch=True,
    )  # fmt: skip

    def train(episodes: int) -> list[float]:
        steps, waits = 0, list[float]()
        with headrace.connect(server.address) as batches:
            for batch in batches:
                if mode == "paced":
                    waits.append(time.perf_counter() - batch.sequences["at"][0, 0])
                batch.save_state("h", batch.state("h") + 1)
                steps += int(batch.length.sum())
                if steps == episodes * STEPS:
                    break
        return waits

    with tempfile.TemporaryDirectory() as directory:
        paced = {"state_dir": directory, "durability": "process"}
        with hs.run(feed, **(paced if mode == "paced" else {})) as server:
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
                    if mode == "paced":
                        time.sleep(PACE_S)
                        one.append({"at": time.perf_counter()})
                    else:
                        one.append({"obs": OBS[t], "reward": REWARD[t]})
            for one in some:
                one.end()


@contextlib.contextmanager
def reverb(mode: str) -> Iterator[tuple[str, Training]]:
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
def transfer_queue(mode: str) -> Iterator[tuple[str, Training]]:
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
    """Run one round in this process; print its steps in a second, pushed and trained."""
    serve, _ = CONTESTANTS[name]
    with serve(mode) as (address, train), contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(PRODUCERS[mode][0]))
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
        pushed = [pool.submit(_pushed_at, producer) for producer in producers]
        waits = train(episodes * len(producers))
        took, steps = time.perf_counter() - began, episodes * len(producers) * STEPS
        processor_us = (_processor_s() - spent) / steps * 1e6
        pushing = max(one.result() for one in pushed) - began
        found = {"rate": steps / took, "us": processor_us, "pushed": steps / pushing}
        if waits:
            cuts = np.quantile(waits, [0.5, 0.99]) * 1000
            found |= dict(zip(("p50", "p99"), cuts.tolist(), strict=True))
        print(json.dumps(found), flush=True)


def _pushed_at(producer: subprocess.Popen[str]) -> float:
    assert producer.stdout is not None
    producer.stdout.readline()
    return time.perf_counter()


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
    print("pushed", flush=True)


def _rate(python: str, name: str, mode: str, episodes: int) -> dict[str, float]:
    """Return the figures of a round: steps in a second, microseconds of the processor for each."""
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
    found: dict[str, float] = json.loads(lines[-1])
    return found


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
        rates: dict[str, list[dict[str, float]]] = {}
        for _ in range(given.rounds):
            for name in CONTESTANTS if mode not in ALONE else ["headrace"]:
                episodes = given.episodes * _MORE.get((name, mode), 1.0) / processes
                episodes = BATCH * max(1, round(episodes / BATCH))  # Reverb's batches are full
                if mode == "paced":
                    episodes = max(1, given.episodes // 50)
                try:
                    rate = _rate(environments.python(name), name, mode, episodes)
                    rates.setdefault(name, []).append(rate)
                except Absent as absent:
                    print(f"{name}, {mode}: left out, {absent}", file=sys.stderr)
        medians = {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in rates.items()
        }
        ours = medians["headrace"]
        for name, one in medians.items():
            text = f"{mode:9} {name:14} {one['rate']:10,.0f} steps/s, {one['pushed']:,.0f} pushed"
            text += f", {one['us']:.1f} us of the processor each"
            if mode not in ALONE:
                text += f"; headrace has {ours['rate'] / one['rate']:.2f} of the rate"
                text += f", {ours['us'] / one['us']:.2f} of the time"
            if "p50" in one:
                text += f"; from append to trainer p50 {one['p50']:.2f}, p99 {one['p99']:.2f} ms"
            lines.append(text + ALONE.get(mode, ""))
    print("\n".join(lines))
    print(
        f"medians of {given.rounds} rounds; load at the start {load:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
