"""The examples of rollouts lose and repeat nothing, whichever process is killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import headrace
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

        for name in ("serve", *roles):
            start(name)
        for name in ("0", "learn", "serve", "1", "0", "serve", "learn", "1"):
            watched = name if name in roles else "0"
            for _ in range(7 if watched != "learn" else 1):
                running[watched].wait_for("stored" if watched == "learn" else "answered")
            running[name].kill_all()
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


def test_ranks_train_packed_and_balanced_answers_once_though_all_processes_are_killed(
    tmp_path: Path,
):
    """Groups of a log are filtered by version, and their answers packed for two ranks."""
    (tmp_path / "feeds.py").write_text(
        "import headrace_server as hs, numpy as np\n"
        "step = hs.sequence('int64')\n"
        "log = hs.live('rollouts', {'prompt': hs.scalar('int64'), 'size': step, 'version': step})\n"
        "def fresh(group):\n"
        "    return bool(np.ptp(group['version']) <= 1)\n"
        "def answers(group):\n"
        "    sizes = enumerate(group['size'], 3 * int(group['prompt']))\n"
        "    return [{'tokens': np.full(size, number)} for number, size in sizes]\n"
        "def feed():\n"
        "    single = log.filter(fresh).flat_map(answers, schema={'tokens': step})\n"
        "    return single.pack(16, 2, balance='tokens', balance_batches=2, max_open=2,\n"
        "                       allow_smaller_final_batch=True)\n"
    )
    at = "feeds.py:feed", "--state-dir", "state", "--bind", f"tcp://127.0.0.1:{free_port()}"
    more = "--workers", "2", "--partitions", "2"
    groups, seen, deaths = 90, [list[int](), list[int]()], 3
    came = threading.Semaphore(0)

    def train(rank: int, most: int) -> bool:
        given: dict[str, Any] = {"rank": rank, "world_size": 2, "run": 1, "prefetch": 1}
        with headrace.connect(address, timeout=PATIENCE_S, **given) as feed:
            for batch in feed:
                if not most:
                    return False  # it is lost: the batch is not committed
                firsts = (batch["positions"] == 0) & (batch["segment_ids"] > 0)
                seen[rank] += batch["tokens"][firsts].tolist()
                came.release()
                most -= 1
        return True

    def train_on(rank: int) -> None:
        while not train(rank, most=5):
            pass

    server, address = serve(tmp_path, *at, *more)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        stack.enter_context(server)
        ranks = [pool.submit(train_on, rank) for rank in (0, 1)]
        out = stack.enter_context(
            headrace.produce(address, log="rollouts", name="sampler", timeout=PATIENCE_S)
        )
        for life in range(deaths + 1):
            for prompt in range(life, groups, deaths + 1):
                group = out.open(str(prompt), {"prompt": prompt})
                for answer in range(3):
                    version = answer if prompt % 10 == 0 else 0
                    group.append({"size": 1 + (prompt + answer) % 7, "version": version})
                group.end()
            out.flush()
            if life < deaths:
                for _ in range(2):
                    assert came.acquire(timeout=PATIENCE_S)
                server.kill_all()
                server, _ = serve(tmp_path, *at, *more)
                stack.enter_context(server)
        out.close_log()
        for one in ranks:
            one.result(PATIENCE_S)
        server.signal(signal.SIGTERM)
        server.wait()
    counts = Counter(seen[0] + seen[1])
    sent = {3 * prompt + n for prompt in range(groups) if prompt % 10 for n in range(3)}
    assert {*counts} <= sent and {*counts.values()} == {1}
    # The last round of a partition may lack a batch for a rank; a batch has up to 32 answers.
    assert len(sent - {*counts}) < 2 * 32 and all(map(len, seen))


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
            server.kill_all()
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
