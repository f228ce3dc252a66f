"""Greetings of trainers with ranks and groups, for tests."""

from headrace_proto.messages import Hello


def hello(
    nonce: bytes, rank: int = -1, world: int = 0, group: str = "", members: int = 0, run: int = 0
) -> Hello:
    mode = {"rank": rank, "world_size": world, "group": group, "members": members, "run": run}
    return Hello(1, 1, "", "f", nonce, **mode)
