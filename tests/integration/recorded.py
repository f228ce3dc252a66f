"""Recorded streams of every kind of feed, which each later version must reproduce.

    python -m tests.integration.recorded --write    # records them into recorded_streams.json

A stream is recorded as a digest of each batch that one trainer is handed: partition, number,
columns, attributes, keys and states.  States are chained (segment_streams.advanced), so a state
that reached the wrong segment changes every digest after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually

from . import user_functions
from .segment_streams import Ledger, at_once, full, of_counts, save_all
from .streams import every_dtype, frozen, frozen_array

PATH = Path(__file__).with_name("recorded_streams.json")
PARTITIONS = (1, 3)
_COUNTS = [3, 1, 5, 2, 1, 1, 7, 4, 2, 3, 1, 6, 2, 9, 1, 2, 4]
_ATTRIBUTES = ("bucket", "length", "label", "rate")
_OF_SEGMENTS = (
    *("key", "next_key", "original_key", "sequence", "sequence_count", "length", "total_length"),
    *("insertion_index", "first", "last"),
)


def _rows(n: int) -> list[dict[str, Any]]:
    return [
        {
            "i": np.int64(i),
            "class": np.int64(i * i % 7 % 3),
            "p": np.float32((i % 10) / 10),
            "rate": np.float32((i % 5) / 2),
            "steps": np.arange(2 * (i * 7 % 23 + 1), dtype=np.float32).reshape(-1, 2) + i,
            "text": b"t" * (i % 4),
        }
        for i in range(n)
    ]


def plain_feeds(directory: Path) -> dict[str, hs.Pipeline]:
    """Every kind of feed without states; files are written into the directory."""
    for part in range(3):
        i = np.arange(30 * part, 30 * part + 30)
        np.savez(directory / f"part-{part}.npz", i=i, x=np.outer(i, np.arange(5.0)))
        lines = [json.dumps({"i": k, "t": "ab" * (k % 7)}) + "\n" for k in i.tolist()]
        (directory / f"part-{part}.jsonl").write_text("".join(lines))
    npz, jsonl = str(directory / "*.npz"), str(directory / "*.jsonl")
    rows = hs.from_examples(_rows(150))
    ragged = {"dynamic_pad": True}
    by_length = {"input_length": "steps", **ragged}
    half, mix = [0.2, 0.3, 0.5], {"labels": "class", **ragged}
    return {
        "every-dtype": hs.from_examples(every_dtype(50)).batch(4, True, dynamic_pad=True),
        "npz": hs.read_npz(npz).batch(7, allow_smaller_final_batch=True),
        "jsonl": hs.read_jsonl(jsonl).filter(user_functions.is_even).batch(5),
        "shuffled": hs.read_npz(npz).shuffle(seed=3).repeat(4).map(user_functions.triple).batch(8),
        "window": hs.read_jsonl(jsonl).shuffle(seed=3, window=16).repeat(2).batch(8),
        "same-order": rows.shuffle(seed=4, reshuffle=False).repeat(2).select(["i"]).batch(6),
        "bucket": rows.bucket("class", 4, 3, allow_smaller_final_batch=True, **ragged),
        "bucket-sizes": rows.bucket("class", [2, 3, 5], 3, **ragged),
        "by-length": rows.repeat(2).bucket_by_sequence_length(
            batch_size=4, bucket_boundaries=[5, 11, 17], **by_length
        ),
        "by-length-sizes": rows.shuffle(seed=1).bucket_by_sequence_length(
            batch_size=[5, 4, 3, 2], bucket_boundaries=[5, 11, 17], **by_length
        ),
        "budget": rows.bucket_by_sequence_length(
            batch_size=None, bucket_boundaries=[5, 11, 17], max_padded_elements=64, **by_length
        ),
        "rejection": rows.rejection_sample("p", 4, seed=5, **ragged),
        "rejection-then-bucket": rows.rejection_sample("p", seed=5).bucket(
            "class", 4, 3, allow_smaller_final_batch=True, **ragged
        ),
        "stratified": rows.repeat(3).stratified_sample(
            target_probs=half, batch_size=6, init_probs=[0.3, 0.4, 0.3], seed=2, **mix
        ),
        "stratified-estimated": rows.repeat(3).stratified_sample(
            target_probs=half, batch_size=6, seed=2, **mix
        ),
        "stratified-unknown": rows.repeat(3).stratified_sample_unknown_dist(
            probs=half, batch_size=6, seed=2, **mix
        ),
        "resampled": rows.resample_at_rate("rate", seed=6).batch(5, True, **ragged),
        "weighted": rows.repeat(2).weighted_resample("rate", 0.7, seed=6).batch(5, True, **ragged),
    }


def segment_feeds() -> dict[str, hs.Pipeline]:
    """Feeds of segments, in both orders and with states in both places."""
    examples = of_counts(_COUNTS)
    lanes = {"order": "lanes"}
    return {
        "arrival": full(examples),
        "arrival-exact": full(examples, allow_small_batch=False, batch_size=3, capacity=5),
        "arrival-unbounded": full(examples, batch_size=3, capacity=None),
        "arrival-one": full(examples, batch_size=1, capacity=2),
        "lanes": full(examples, **lanes),
        "lanes-exact": full(examples, allow_small_batch=False, batch_size=3, capacity=6, **lanes),
        "lanes-kept": full(examples, state_placement="trainer", **lanes),
    }


def _digest(values: Any) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def _of_plain(feed: headrace.Feed) -> Iterator[str]:
    for batch in feed:
        facts = [(name, getattr(batch, name, None)) for name in _ATTRIBUTES]
        told = [(n, v if v is None or isinstance(v, int) else frozen_array(v)) for n, v in facts]
        yield _digest((frozen(batch), told))


def digests_of_segments(feed: headrace.Feed) -> Iterator[str]:
    ledger = Ledger(of_counts(_COUNTS))
    for batch in feed:
        facts = [(name, frozen_array(getattr(batch, name))) for name in _OF_SEGMENTS]
        parts = [
            (name, frozen_array(columns[name]))
            for columns in (batch.sequences, batch.context)
            for name in sorted(columns)
        ]
        states = [frozen_array(batch.state(name)) for name in ("chain", "mark", "sums", "flags")]
        yield _digest((batch.partition, batch.number, facts, parts, states))
        save_all(batch, ledger.check(batch))


@contextlib.contextmanager
def served(feeds: Any, servers: int, **options: Any) -> Iterator[list[hs.Server]]:
    """Start this many servers, each with a share of every feed."""
    with contextlib.ExitStack() as running:
        yield [
            running.enter_context(hs.run(feeds, share=(index, servers), **options))
            for index in range(servers)
        ]


def wait_until_alone(*servers: hs.Server) -> None:
    """Wait until all trainers have left: the owner with the fewest lanes serves the next one."""
    for server in servers:
        eventually(lambda of=server: not any(feed["trainers"] for feed in of.stats().values()))


def streams(partitions: int, workers: int, servers: int = 1) -> dict[str, list[str]]:
    """The digests of every feed's batches, as one trainer gets them, or each of two ranks."""
    with tempfile.TemporaryDirectory() as directory:
        plain, segments = plain_feeds(Path(directory)), segment_feeds()
        ranked = ("bucket", "shuffled")
        feeds = {**plain, **{f"{name}-ranks": plain[name] for name in ranked}, **segments}
        found: dict[str, list[str]] = {}
        with served(feeds, servers, workers=workers, partitions=partitions) as running:
            addresses = [server.address for server in running]

            def read(name: str, **options: Any) -> list[str]:
                of = digests_of_segments if name in segments else _of_plain
                with headrace.connect(addresses, feed=name, timeout=PATIENCE_S, **options) as feed:
                    return list(of(feed))

            for name in plain:
                found[name] = read(name)
            for name in segments:  # the rows of a batch depend on which states were saved before it
                wait_until_alone(*running)
                found[name] = read(name, prefetch=0)
            for name in ranked:
                ranks = [
                    lambda name=name, rank=rank: read(f"{name}-ranks", rank=rank, world_size=2)
                    for rank in range(2)
                ]
                for rank, stream in enumerate(at_once(ranks)):
                    found[f"{name}-rank-{rank}"] = stream
    return found


def main() -> None:
    """Record all streams where the command line has ``--write``."""
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    recorded = {str(p): streams(p, workers=min(2, p)) for p in PARTITIONS}
    PATH.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")
    print(f"{PATH.name}: {sum(len(v) for of in recorded.values() for v in of.values())} batches")


if __name__ == "__main__":
    main()
