"""Greetings of trainers with ranks, for tests."""

from headrace_proto.messages import Hello


def hello(nonce: bytes, rank: int = -1, world: int = 0, run: int = 0) -> Hello:
    return Hello(1, "", "f", nonce, rank=rank, world_size=world, run=run)
