"""Prompts out and rollouts in: post-training in which each prompt is trained once, whoever dies.

    prompts ─► samplers ────────► log "rollouts" ─► learner ─► policy, with the feed's token
                     ▲                                            │
                     └──────────── policy.json ◄──────────────────┘

A prompt is a kind of question, and an answer one token.  The policy is a table, and learns which
token each kind wants.  The answers to a prompt are one sequence of the log, its *group*, which ends
with the last of them: the learner needs them together, since it compares them (as GRPO does).

A sampler commits a prompt after the flush of its group.  If it dies between the two, somebody gets
the prompt again, and its group is in the log twice.  The learner trains the first one that it gets.
It stores the policy, what it has trained, and the token of its feed as one file, and goes on from
all three.

One terminal each; kill any of them, with -9, and start it again:

    headrace serve examples/rollouts.py:feeds --state-dir state
    python examples/rollouts.py sample --name 0
    python examples/rollouts.py sample --name 1
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
#: Answers to a prompt.
ANSWERS = 6
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


def sample(address: str, directory: Path, name: str) -> None:
    """Answer prompts until there are no more."""
    random, given = np.random.default_rng(), {"timeout": 60.0}
    out = headrace.produce(address, log="rollouts", name=f"sampler-{name}", **given)
    with headrace.connect(address, feed="prompts", commit="explicit", **given) as prompts:
        for batch in prompts:
            prompt, kind = int(batch["prompt"][0]), int(batch["kind"][0])
            key = f"{prompt} by {name}"
            for other in out.sequences.keys() - {key}:  # somebody else has that prompt now
                out.open(other).abort()
            group = out.open(key, {"prompt": prompt, "kind": kind})
            while group.steps < ANSWERS:  # an earlier process may have begun
                state = loaded(directory)
                answer, reward = answered(np.array(state["policy"]), kind, random)
                group.append({"answer": answer, "reward": reward, "version": state["version"]})
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
            for prompt, *group in zip(
                *(batch[name] for name in ("prompt", "kind", "answer", "reward")), strict=True
            ):
                if int(prompt) not in state["trained"]:
                    step(policy, *group)
                    state["trained"].append(int(prompt))
                    state["rewards"].append(float(group[-1].mean()))
            if number % EVERY == 0:
                checkpoint(directory, state, policy, feed)
        checkpoint(directory, state, policy, feed)


def step(policy: np.ndarray, kind: int, answers: np.ndarray, rewards: np.ndarray) -> None:
    """Make answers more likely that were better than others of their group."""
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
    parser.add_argument("--address", default="tcp://127.0.0.1:5557")
    parser.add_argument("--directory", type=Path, default=Path(), help="of policy.json")
    parser.add_argument("--name", default="0")
    given = parser.parse_args()
    if given.role == "sample":
        sample(given.address, given.directory, given.name)
    else:
        learn(given.address, given.directory)


if __name__ == "__main__":
    main()
