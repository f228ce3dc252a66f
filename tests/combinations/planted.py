"""Bugs that the judge must find: each is planted in a copy of the tree, and combinations are drawn.

    python -m tests.combinations.planted [--list] [--seed N] [--groups N] [NAME …]

An edit whose place is gone counts as not found: write it anew for the code that took the place.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("client", "server", "proto", "tests")
_SERVER = "server/headrace_server"


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    was: str
    becomes: str

    def plant(self, tree: Path) -> bool:
        """Plant the bug in a tree; return whether its place is there."""
        path = tree / self.file
        text = path.read_text() if path.exists() else ""
        path.write_text(text.replace(self.was, self.becomes, 1)) if text else None
        return self.was in text


_READING, _MAKING = f"{_SERVER}/reading", f"{_SERVER}/making"
_SHAPING = f"{_SERVER}/shaping"
BUGS = [
    Bug(
        "shares of equal size lose the last examples",
        f"{_READING}/partition_rows.py",
        "self._first = partition * self._n // partitions",
        "self._first = partition * (self._n // partitions)",
    ),
    Bug(
        "reshuffle is the other way round",
        f"{_READING}/partition_rows.py",
        "if not order.reshuffle:",
        "if order.reshuffle:",
    ),
    Bug(
        "windows of all partitions are permuted alike",
        f"{_READING}/partition_rows.py",
        "permuted = self._permutation(size, seed, epoch, absolute)",
        "permuted = self._permutation(size, seed, epoch, begin)",
    ),
    Bug(
        "a source that is read forward is shuffled alike in each epoch",
        f"{_READING}/partition_rows.py",
        "        place, inner, offset = position\n"
        "        turn = epoch if self._order.reshuffle else 0",
        "        place, inner, offset = position\n        turn = 0",
    ),
    Bug(
        "facts of rows stay behind where rows are taken",
        f"{_READING}/chunk.py",
        "facts = {name: fact[rows] for name, fact in self.facts.items()}",
        "facts = {name: fact[: len(self.ordinals[rows])] for name, fact in self.facts.items()}",
    ),
    Bug(
        "rejection draws alike in each epoch",
        f"{_READING}/stages/rejection_sample.py",
        "accepted = keep(self._seed, self.number, self.epoch,",
        "accepted = keep(self._seed, self.number, 0,",
    ),
    Bug(
        "the number of a sampler is no part of its chance",
        f"{_SHAPING}/class_acceptance.py",
        "sub_seed = chance.derive(seed, chance.ACCEPT, stage)",
        "sub_seed = chance.derive(seed, chance.ACCEPT, 0)",
    ),
    Bug(
        "an estimate leaves out the row that it judges",
        f"{_SHAPING}/class_acceptance.py",
        "counts_KN = np.cumsum(own == classes, axis=1, dtype=np.int64)",
        "counts_KN = np.cumsum(own == classes, axis=1, dtype=np.int64) - (own == classes)",
    ),
    Bug(
        "counts of classes are not restored",
        f"{_SHAPING}/class_acceptance.py",
        "self._counts = np.array(counts, np.int64)",
        "pass",
    ),
    Bug(
        "copies of a copy have the chance of those of the original",
        f"{_SHAPING}/row_copies.py",
        "return _keys(ordinals, counts, _ROWS + stage)",
        "return _keys(ordinals, counts, _ROWS)",
    ),
    Bug(
        "a running mean is one group late",
        f"{_SHAPING}/row_copies.py",
        "decay = min((groups - 1) / min(groups, self.warmup), self.mean_decay)",
        "decay = min(groups / min(groups + 1, self.warmup), self.mean_decay)",
    ),
    Bug(
        "the debiased mean forgets its power when it is restored",
        f"{_SHAPING}/row_copies.py",
        "        for name, value in zip(_STATE, values, strict=True):\n"
        "            setattr(self, name, value)",
        "        for name, value in zip(_STATE, values, strict=True):\n"
        '            setattr(self, name, value if name != "power" else self.power)',
    ),
    Bug(
        "a length on a boundary goes into the bucket below",
        f"{_SHAPING}/bucket.py",
        'return np.searchsorted(boundaries, lengths, side="right")',
        'return np.searchsorted(boundaries, lengths, side="left")',
    ),
    Bug(
        "rows are not padded to their boundary",
        f"{_SHAPING}/bucket.py",
        "size = max(size, self.boundaries[bucket])",
        "size = max(size, 0)",
    ),
    Bug(
        "a budget of elements is that of the longest row alone",
        f"{_SHAPING}/bucket.py",
        "rounded: np.ndarray = -(-np.minimum(lengths, _LONGEST) // self.multiple) * self.multiple",
        "rounded: np.ndarray = np.minimum(lengths, _LONGEST)",
    ),
    Bug(
        "draws of classes differ in no partition",
        f"{_SHAPING}/class_queues.py",
        "return multinomial(self.batch_size, self.probs, seed, self.first_not_formed)",
        "return multinomial(self.batch_size, self.probs, seed, self.first_not_formed // 2)",
    ),
    Bug(
        "ragged rows that do not follow each other are copied as if they did",
        f"{_MAKING}/assemble.py",
        "breaks = np.flatnonzero(column.starts[1:] != column.starts[:-1] + sizes[:-1]) + 1",
        "breaks = np.flatnonzero(column.starts[1:] < column.starts[:-1]) + 1",
    ),
    Bug(
        "padding is what was there before",
        f"{_MAKING}/assemble.py",
        "out[end:at] = _ZEROS[: at - end]",
        "out[end:at] = b'x' * (at - end)",
    ),
    Bug(
        "overlapping windows go on behind the end",
        f"{_MAKING}/segment_cutting.py",
        "counts: np.ndarray = 1 - np.minimum(self.num_unroll - steps, 0) // self.stride",
        "counts: np.ndarray = -(-steps // self.stride)",
    ),
    Bug(
        "a phase is that of no epoch",
        f"{_MAKING}/segment_cutting.py",
        "chance.uniform(self._phase_seed, chance.PHASES, epoch, chunk.ordinals)",
        "chance.uniform(self._phase_seed, chance.PHASES, 0, chunk.ordinals)",
    ),
    Bug(
        "the left context counts steps before the first",
        f"{_MAKING}/segment_cutting.py",
        "first = np.maximum(begins - self.left, 0)",
        "first = begins - self.left",
    ),
    Bug(
        "unique keys are those of the first epoch",
        f"{_MAKING}/segment_cutting.py",
        "chance.uniform(self._seed, chance.KEYS, epoch, chunk.ordinals)",
        "chance.uniform(self._seed, chance.KEYS, 0, chunk.ordinals)",
    ),
    Bug(
        "facts of segments are those of other examples",
        f"{_MAKING}/segment_block.py",
        "columns[name][to] = offer.facts[source][rows]",
        "columns[name][to] = offer.facts[source][rows[::-1]]",
    ),
    Bug(
        "a short first segment has no context after it",
        f"{_MAKING}/segment_block.py",
        "again = (short & (real > 0)).nonzero()[0]",
        "again = (short & (real > 1)).nonzero()[0]",
    ),
    Bug(
        "the context before a segment comes from the example before",
        f"{_MAKING}/segment_block.py",
        "        if first < 0:\n            block[at : at - first * item] = 0",
        "        if first < -1:\n            block[at : at - first * item] = 0",
    ),
    Bug(
        "segments whose example has an even number of them are last one too early",
        "client/headrace/segments.py",
        "flags = sequence + 1 == count",
        "flags = sequence + 1 >= count - (count % 4 == 0)",
    ),
    Bug(
        "lanes of a rank have the same numbers in all partitions",
        "client/headrace/segments.py",
        "np.int32(self.partition * self._layout.batch_size)",
        "np.int32(0)",
    ),
    Bug(
        "states that are kept stay in their rows where a lane is removed",
        "client/headrace/lanes.py",
        "source = place[lanes]",
        "source = np.minimum(np.arange(len(lanes)), max(place.max(), 0))",
    ),
    Bug(
        "new examples begin with the state of another",
        "client/headrace/lanes.py",
        'batch.array("state:" + state.name)[index[brought]]',
        'batch.array("state:" + state.name)[index[brought][::-1]]',
    ),
    Bug(
        "a loop that breaks does not commit its last batch",
        "client/headrace/feed.py",
        "self._leave(commit=kind is None)",
        "self._leave(commit=False)",
    ),
]


def found(bug: Bug | None, seed: int, groups: int) -> str:
    """Return by what the judge finds a bug; "" where it does not."""
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        tree = Path(directory)
        for name in _COPIED:
            shutil.copytree(
                _ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "bench")
            )
        if bug is not None and not bug.plant(tree):
            return ""
        path = os.pathsep.join([str(tree), *(str(tree / name) for name in _COPIED[:3])])
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "tests.combinations"),
                *("--seed", str(seed), "--groups", str(groups)),
            ],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path, "COMBINATIONS_WAIT_S": "30"},
            capture_output=True,
            text=True,
        )
        text = ran.stdout + ran.stderr
        law = re.search(r"^(group \d+, .*?)$", text, re.MULTILINE)
        return law.group(1) if law else text.strip()[-300:] if ran.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.combinations.planted")
    parser.add_argument("names", nargs="*", help="parts of names; all bugs without any")
    parser.add_argument("--list", action="store_true", help="only check that each has its place")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=12)
    given = parser.parse_args()
    bugs = [bug for bug in BUGS if not given.names or any(n in bug.name for n in given.names)]
    if not given.list and (law := found(None, given.seed, given.groups)):
        raise SystemExit(f"these draws break a law without any bug, take another seed: {law}")
    missed = 0
    for bug in bugs:
        began = time.monotonic()
        path = _ROOT / bug.file
        if given.list:
            law = "its place is there" if path.exists() and bug.was in path.read_text() else ""
        else:
            law = found(bug, given.seed, given.groups)
        missed += not law
        seconds = time.monotonic() - began
        print(
            f"{'found' if law else 'MISSED'} {seconds:4.0f} s  {bug.name}\n    {law[:200]}",
            flush=True,
        )
    print(f"{len(bugs) - missed} of {len(bugs)} found")
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
