"""The command measures with the client, in a process of its own."""

from __future__ import annotations

import json

import headrace_server as hs
from tests.nursery import warm_run


def test_the_command_hands_its_options_to_the_client():
    pipeline = hs.from_examples([{"x": i} for i in range(64)]).repeat().batch(4)
    command = ["-m", "headrace_server.cli", "bench"]
    with hs.run({"numbers": pipeline}) as server:
        options = ["--consume", "--seconds", "0.2", "--feed", "numbers", "--json"]
        done = warm_run(*command, server.address, *options)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["feed"] == "numbers"
        refused = warm_run(*command, server.address)
        assert refused.returncode == 2
        assert "--consume" in refused.stderr
