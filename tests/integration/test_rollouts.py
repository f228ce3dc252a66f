"""The examples of rollouts lose and repeat nothing, whichever process is killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from tests.children import children_of
from tests.patience import PATIENCE_S
from tests.ports import free_port

from .processes import Process, serve


def example(name: str) -> Any:
    """Return a program of the examples, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
rollouts, buffer = example("rollouts"), example("rollout_buffer")


def test_each_prompt_is_stored_and_trained_once_though_every_process_is_killed(tmp_path: Path):
    address = f"tcp://127.0.0.1:{free_port()}"
    at = f"{rollouts.__file__}:feeds", "--bind", address, "--state-dir", "state"
    roles = {"learn": ["learn"], "0": ["sample", "--name", "0"], "1": ["sample", "--name", "1"]}
    running: dict[str, Process] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str) -> None:
            if name == "serve":
                running[name], _ = serve(tmp_path, *at)
            else:
                given = [*roles[name], "--address", address, "--directory", str(tmp_path)]
                running[name] = Process(rollouts.__file__, *given)
            stack.enter_context(running[name])

        def kill(name: str) -> None:
            children = children_of(running[name].pid) if name == "serve" else ()
            running[name].kill()
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        for name in ("serve", *roles):
            start(name)
        for name in ("0", "learn", "serve", "1", "0", "serve", "learn", "1"):
            watched = name if name in roles else "0"
            for _ in range(7 if watched != "learn" else 1):
                running[watched].wait_for("stored" if watched == "learn" else "answered")
            kill(name)
            start(name)
        for name in ("0", "1"):
            running[name].wait()
        with headrace.produce(address, log="rollouts", name="closer", timeout=PATIENCE_S) as out:
            out.close_log()
        running["learn"].wait()
        groups = list(rollouts.stored(address))
        running["serve"].signal(signal.SIGTERM)
        running["serve"].wait()
    assert {prompt for prompt, _ in groups} == {*range(rollouts.PROMPTS)}
    assert len(groups) <= rollouts.PROMPTS + 8  # a prompt may be answered again at a death
    state = json.loads((tmp_path / "policy.json").read_text())
    assert sorted(state["trained"]) == sorted({prompt for prompt, fresh in groups if fresh})
    assert len(state["trained"]) > rollouts.PROMPTS // 2
    last, first = state["rewards"][-40:], state["rewards"][:40]
    assert sum(last) > 1.5 * sum(first)


def samples(numbers: range) -> list[dict[str, Any]]:
    return [
        {
            "uid": b"%d" % n,
            "version": n // 8,
            "tokens": np.arange(n % 5 + 1),
            "logprobs": np.zeros(n % 5 + 1, np.float32),
            "reward": float(n),
        }
        for n in numbers
    ]


def numbers(taken: list[Any]) -> list[int]:
    return [int(uid) for batch in taken for uid in batch["uid"]]


def test_samples_that_were_put_are_got_once_though_the_server_is_killed(tmp_path: Path):
    address, seen = f"tcp://127.0.0.1:{free_port()}", list[int]()
    at = f"{buffer.__file__}:feeds", "--bind", address, "--state-dir", "state"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(tmp_path, *at)[0])
        writer = buffer.Writer(address, "worker-0")
        for life in range(3):
            first = 20 * life
            assert writer.put(samples(range(first, first + 20)), "train") == first + 20
            with buffer.Reader(address, "train") as reader:
                taken = reader.get(10)
                seen += numbers(taken)
                reader.done(taken)
                assert len(numbers(reader.get(4))) == 4  # they are not done, and come again
            children = children_of(server.pid)
            server.kill()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            server = stack.enter_context(serve(tmp_path, *at)[0])
            if life == 1:
                older, writer = writer, buffer.Writer(address, "worker-0")
                assert writer.stored("train") == 40
                older._open["train"]._end()  # as if its process had died
        writer.finish("train")
        with buffer.Reader(address, "train") as reader:
            while taken := reader.get():
                seen += numbers(taken)
                reader.done(taken)
        writer.close()
        server.signal(signal.SIGTERM)
        server.wait()
    assert seen == list(range(60))
