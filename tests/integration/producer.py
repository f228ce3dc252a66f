"""A producer as a process: it pushes sequences of a log, one after another, until it is killed.

    {"event": "durable", "steps": {key: steps}}    so many steps of each sequence are durable
    {"event": "ended", …}                          it has pushed all, and left

Step t of a sequence has the value t, and its context the key.  A sequence that this name has open
goes on first; each fourth one is a whole example.
"""

from __future__ import annotations

import argparse
import json

import headrace


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("name")
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=10**9)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=60.0)
    given = parser.parse_args()
    out = headrace.produce(given.address, log="episodes", name=given.name, timeout=given.timeout)

    def say_durable(key: str, steps: int) -> None:
        print(json.dumps({"event": "durable", "steps": {key: steps}}), flush=True)

    def push(key: str) -> None:
        sequence = out.open(key, {"key": key})
        while sequence.steps < given.steps:
            sequence.append({"x": float(sequence.steps)})
            if sequence.steps % 3 == 0:
                out.flush()
                say_durable(key, sequence.steps)
        sequence.end()
        out.flush()
        say_durable(key, given.steps)

    for key in [*out.sequences]:
        push(key)
    for number in range(given.sequences):
        key = f"{given.name}-{given.life}-{number}"
        if number % 4 < 3:
            push(key)
        else:
            out.append({"x": list(range(given.steps)), "key": key})
            out.flush()
            say_durable(key, given.steps)
    out.close()
    print(json.dumps({"event": "ended"}), flush=True)


if __name__ == "__main__":
    main()
