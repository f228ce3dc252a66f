"""``headrace bench``: a trainer without a model, in a process of its own, takes batches.

The client does the work (``python -m headrace.bench``): server and client share no code but the
protocol, and a measurement has to be that of an ordinary trainer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace

from ..process.option import Option
from .frame import with_options
from .options import JSON


@with_options(
    Option("address", "text", metavar="ADDRESS", positional=True),
    Option("feed", "text", metavar="NAME"),
    Option("consume", "flag", default=False),
    Option("seconds", "seconds", default=5.0),
    Option("prefetch", "text", default="auto", metavar="N|auto"),
    Option("framework", "text", default="numpy", choices=("numpy", "tf", "torch", "jax")),
    Option("keys", "path"),
    Option("timeout", "seconds", default=30.0),
    JSON,
)
def bench(options: Namespace) -> int:
    """Take and commit batches of a running feed as fast as they come, and print the rate.
    Segments are saved with the states that they came with.

    address: of the server
    feed: optional where one feed is served
    consume: commit the batches, so that no trainer gets them; must be given
    seconds: how long to measure
    prefetch: batches held beyond the one in hand
    framework: framework of the tensors
    keys: keys of a trainer, where the server has keys
    timeout: the deadline of every wait
    """
    given = {option.name: getattr(options, option.name) for option in bench.options}
    words = json.dumps(given, default=str)
    return subprocess.run([sys.executable, "-m", "headrace.bench", words]).returncode
