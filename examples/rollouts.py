"""Prompts out and rollouts in: post-training in which each prompt is trained once, whoever dies.

    prompts ─► sampler 0, 1 … ─► log "rollouts" ─► learner ─► policy, with the feed's token
                     ▲                                            │
                     └──────────── policy.json ◄──────────────────┘

A prompt is a kind of question, and an answer one token.  The policy is a table, and learns which
token each kind wants.  The answers to a prompt are one sequence of the log, its *group*, which ends
with the last of them: the learner needs them together, since it compares them (as GRPO does).

A sampler commits a prompt after the flush of its group.  If it dies between the two it gets the
prompt again, and sees that the log has the group: prompt k of a rank is group k of its name.
The learner stores the policy and the token of its feed as one file, and goes on from both.

One terminal each; kill any of them, with -9, and start it again:

    headrace serve examples/rollouts.py:feeds --state-dir state
    python examples/rollouts.py sample --rank 0
    python examples/rollouts.py sample --rank 1
    python examples/rollouts.py learn

The learner ends once the samplers have, and the log is closed: headrace log close rollouts.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace
import headrace_server as hs

PROMPTS, KINDS, TOKENS = 240, 6, 8
#: Answers to a prompt.  With its opening and its end a group has two items more.
ANSWERS = 6
SAMPLERS = 2
#: A group whose answers come from policies farther apart than this is not trained.
MOST_APART = 4
RATE = 2.0
#: Batches of the learner between two checkpoints.
EVERY = 3

GROUP = {
    "prompt": hs.scalar("int64"),
    "kind": hs.scalar("int64"),
    "answer": hs.sequence("int64"),
    "reward": hs.sequence("float32"),
    "version": hs.sequence("int64"),  # of the policy that gave the answer
}


def fresh(group: dict[str, Any]) -> bool:
    return bool(np.ptp(group["version"]) <= MOST_APART)


def feeds() -> dict[str, hs.Pipeline]:
    rows = [{"prompt": n, "kind": n * n % KINDS} for n in range(PROMPTS)]
    return {
        "prompts": hs.from_examples(rows).shuffle(seed=1).batch(1),
        "rollouts": hs.live("rollouts", GROUP).filter(fresh).batch(8, **_ALL),
        "stored": hs.live("rollouts", GROUP).batch(8, **_ALL),
    }


_ALL = {"dynamic_pad": True, "allow_smaller_final_batch": True}


def answered(policy: np.ndarray, kind: int, random: np.random.Generator) -> tuple[int, float]:
    """Return an answer, and its reward."""
    likely = np.exp(policy[kind] - policy[kind].max())
    answer = int(random.choice(TOKENS, p=likely / likely.sum()))
    return answer, float(answer == (kind * 5 + 3) % TOKENS)


def sample(address: str, directory: Path, rank: int) -> None:
    """Answer the prompts of a rank, until there are no more."""
    name, random = f"sampler-{rank}", np.random.default_rng()
    out = headrace.produce(address, log="rollouts", name=name, timeout=60)
    ranks: dict[str, Any] = {"rank": rank, "world_size": SAMPLERS, "run": 1}
    prompts = headrace.connect(address, feed="prompts", commit="explicit", timeout=60, **ranks)
    with prompts:
        for batch in prompts:
            prompt, kind = int(batch["prompt"][0]), int(batch["kind"][0])
            if out.stored // (ANSWERS + 2) <= batch.number // SAMPLERS:  # else it has that group
                group = out.open(str(prompt), {"prompt": prompt, "kind": kind})
                while group.steps < ANSWERS:  # an earlier process may have begun
                    state = loaded(directory)
                    answer, reward = answered(np.array(state["policy"]), kind, random)
                    step = {"answer": answer, "reward": reward, "version": state["version"]}
                    group.append(step)
                group.end()
                out.flush()
            batch.commit()
            print(json.dumps({"event": "answered", "prompt": prompt}), flush=True)


def loaded(directory: Path) -> dict[str, Any]:
    file = directory / "policy.json"
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    policy = np.zeros((KINDS, TOKENS)).tolist()
    return {"policy": policy, "version": 0, "token": None, "trained": [], "rewards": []}


def store(directory: Path, state: dict[str, Any]) -> None:
    part = directory / "policy.part"
    part.write_text(json.dumps(state))
    os.replace(part, directory / "policy.json")


def learn(address: str, directory: Path) -> None:
    """Train on groups until the log is closed; go on from the last checkpoint."""
    state = loaded(directory)
    with headrace.connect(address, feed="rollouts", resume=state["token"], timeout=60) as feed:
        if state["token"] is None:
            state["token"] = feed.snapshot()
            store(directory, state)
        policy = np.array(state["policy"])
        for number, batch in enumerate(feed, 1):
            step(policy, batch)
            state["trained"] += batch["prompt"].tolist()
            state["rewards"].append(float(batch["reward"].mean()))
            if number % EVERY == 0:
                checkpoint(directory, state, policy, feed)
        checkpoint(directory, state, policy, feed)


def step(policy: np.ndarray, batch: headrace.Batch) -> None:
    """Make answers more likely that were better than others of their group."""
    for kind, answers, rewards in zip(batch["kind"], batch["answer"], batch["reward"], strict=True):
        for answer, better in zip(answers, rewards - rewards.mean(), strict=True):
            likely = np.exp(policy[kind] - policy[kind].max())
            gradient = -likely / likely.sum()
            gradient[answer] += 1
            policy[kind] += RATE / ANSWERS * better * gradient


def checkpoint(
    directory: Path, state: dict[str, Any], policy: np.ndarray, feed: headrace.Feed
) -> None:
    """Store policy and token together: a later process repeats what came after both."""
    state |= {"policy": policy.tolist(), "version": state["version"] + 1}
    state["token"] = feed.snapshot()
    store(directory, state)
    print(json.dumps({"event": "stored", "trained": len(state["trained"])}), flush=True)


def stored(address: str) -> Iterator[tuple[int, bool]]:
    """Yield the prompt of each group of the log, and whether the learner gets it."""
    with headrace.connect(address, feed="stored", timeout=60) as feed:
        for batch in feed:
            for prompt, versions in zip(batch["prompt"], batch["version"], strict=True):
                yield int(prompt), fresh({"version": versions})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["sample", "learn"])
    parser.add_argument("--address", default="tcp://127.0.0.1:5555")
    parser.add_argument("--directory", type=Path, default=Path(), help="of policy.json")
    parser.add_argument("--rank", type=int, default=0)
    given = parser.parse_args()
    if given.role == "sample":
        sample(given.address, given.directory, given.rank)
    else:
        learn(given.address, given.directory)


if __name__ == "__main__":
    main()
