"""No batch takes more bytecodes or Python calls than it did.

Where a change makes this fail, `python -m tests.bench.opcodes` shows in which room.  Where one
makes them fewer, it also lowers the numbers here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import opcodes

#: By case: bytecodes and calls of a batch at the owner, then at the trainer.  Those of W2
#: vary most: its trainer waits for each batch, or for hardly any.
REACHED = {
    "W1": (4360, 130, 2290, 64),
    "W2": (7680, 182, 3290, 88),
    "W4 arrival 0": (6930, 172, 3940, 105),
    "W4 arrival 1": (6230, 148, 3880, 104),
    "W4 lanes 2": (5780, 140, 3670, 98),
    "W4 lanes 8": (4400, 105, 3050, 83),
}
#: Which messages share a wake of the owner differs a little between runs.
TOLERANCE = 1.05
#: On a busy machine more of them come alone.  On one with more than so many processes for each core
#: that wait for it, nothing can be said.
ATTEMPTS, BUSY = 3, 2.0


@pytest.mark.tools
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the numbers are of CPython 3.11")
def test_no_batch_takes_more_bytecodes_or_calls_than_it_did(tmp_path: Path):
    least = dict.fromkeys(REACHED, (1 << 60,) * 4)
    for _ in range(ATTEMPTS):
        for case, numbers in counted(tmp_path).items():
            least[case] = tuple(map(min, least[case], numbers))
        over = {
            case: (least[case], reached)
            for case, reached in REACHED.items()
            if any(now > TOLERANCE * then for now, then in zip(least[case], reached, strict=True))
        }
        if not over:
            return
    text = f"counted, and reached before: {over}"
    if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy to tell; {text}")
    pytest.fail(text)


def counted(directory: Path) -> dict[str, tuple[int, ...]]:
    file = directory / "counts.json"
    command = [sys.executable, "-m", "tests.bench.opcodes", "--json", str(file)]
    subprocess.run(command, check=True)
    return {
        case: tuple(opcodes.total(counts["owner"]) + opcodes.total(counts["trainer"]))
        for case, counts in json.loads(file.read_text()).items()
    }
