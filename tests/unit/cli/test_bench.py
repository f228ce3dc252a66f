"""The command measures with the client, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import headrace_server as hs
from tests.patience import PATIENCE_S


def test_the_command_hands_its_options_to_the_client():
    pipeline = hs.from_examples([{"x": i} for i in range(64)]).repeat().batch(4)
    command = [sys.executable, "-m", "headrace_server.cli", "bench"]
    with hs.run({"numbers": pipeline}) as server:
        options = ["--consume", "--seconds", "0.2", "--feed", "numbers", "--json"]
        done = subprocess.run(
            [*command, server.address, *options], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["feed"] == "numbers"
        refused = subprocess.run([*command, server.address], capture_output=True, text=True)
        assert refused.returncode == 2
        assert "--consume" in refused.stderr
