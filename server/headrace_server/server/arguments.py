"""Checks of the arguments of ``hs.run`` that need more than one option's bounds.

Pipelines, tokens, addresses.  Errors name the argument.  The locator checks the keys.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_proto.address import check_address
from headrace_proto.errors import kind_of, rewording
from headrace_proto.placement import Share, share_of
from headrace_proto.process import process_name
from headrace_proto.token import Token

from ..files.durable_file import usable, writing
from ..files.manifest import resolve
from ..net.public_socket import clash
from ..pipeline.builder import Pipeline
from ..pipeline.declaration import Declaration
from ..pipeline.function_names import packed
from ..process.child import Pipe
from ..process.config import FeedConfig, RunConfig
from ..process.settings import CACHE_BYTES, RunSettings
from ..watch.answers import is_here

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def refuse_in_worker(call: str) -> None:
    """RuntimeError where a worker, which imports files of user code, comes to start a server."""
    if Pipe.made:
        raise RuntimeError(
            f"{call} was called by a worker that imports a file for the functions in it: in that "
            f"file put {call}, and all that is not to run in workers, under "
            'if __name__ == "__main__":'
        )


def as_tokens(resume: object, feeds: set[str]) -> dict[str, Token]:
    """Return tokens by feed."""
    tokens: dict[str, Token] = {}
    given = resume if isinstance(resume, (list, tuple)) else [] if resume is None else [resume]
    for value in given:
        token = value if isinstance(value, Token) else Token.from_plain("resume", value)
        if token.feed not in feeds:
            listed = ", ".join(sorted(feeds))
            raise ValueError(f"resume: a token of feed {token.feed!r}; this server has {listed}")
        if token.feed in tokens:
            raise ValueError(f"resume: two tokens of feed {token.feed!r}")
        tokens[token.feed] = token
    return tokens


def declared(pipelines: Pipeline | Mapping[str, Pipeline | Declaration]) -> dict[str, Declaration]:
    """Return the declaration of each feed, by name."""
    named: object = {"default": pipelines} if isinstance(pipelines, Pipeline) else pipelines
    if not isinstance(named, Mapping):
        call = ": call it" if callable(pipelines) else ""
        raise TypeError(
            f"pipelines={pipelines!r:.80} is neither a pipeline nor a dict of them{call}"
        )
    if not named:
        raise ValueError(f"pipelines={pipelines!r} has no feed: give at least one")
    found = {}
    for name, pipeline in named.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"pipelines: feed name {name!r:.200} is not letters, digits, '_', '.', '-' "
                "(1 to 100)"
            )
        if not isinstance(pipeline, (Pipeline, Declaration)):
            raise TypeError(f"pipelines: feed {name!r} is {kind_of(pipeline)}, not a pipeline")
        with rewording(ValueError, f"feed {name!r}: ", ValueError):
            found[name] = pipeline.declaration() if isinstance(pipeline, Pipeline) else pipeline
    return found


def share_in(share: object, partitions: int | None) -> Share:
    """Return a server's share, checked; ValueError where it is of no partition."""
    index, servers = share_of(share)
    if servers > 1 and partitions is None:
        raise ValueError(
            f"share={share!r} needs partitions: the slices of the whole feed, of which each of the "
            f"{servers} servers owns some, and which all of them must be given alike"
        )
    if partitions is not None and partitions < servers:
        raise ValueError(
            f"share={share!r} and partitions={partitions}: each of the {servers} servers owns at "
            f"least one partition, so there must be {servers} or more"
        )
    return index, servers


def start_config(settings: RunSettings, taken: tuple[str, ...]) -> RunConfig:
    """Check pipelines and addresses; return the config that a server starts from.

    ``taken`` are addresses of this server beside ``bind``.
    """
    share = share_in(settings.share, settings.partitions)
    count = settings.partitions or settings.workers
    feeds = tuple(
        FeedConfig(name, packed(one), resolve(one.source.paths), count, share=share)
        for name, one in declared(settings.pipelines).items()
    )
    binds = _addresses(settings.bind)
    _check_exposed(binds, settings.keys, settings.insecure)
    ports: Any = settings.worker_ports
    if ports is not None and ports[1] - ports[0] + 1 < settings.workers:
        raise ValueError(
            f"worker_ports={ports[0]}-{ports[1]} are fewer ports than workers={settings.workers}: "
            "each worker has one of its own"
        )
    _check_apart(binds, taken)
    if settings.cache_bytes is not None and settings.cache_dir is None:
        raise ValueError(
            f"cache_bytes={settings.cache_bytes} needs a cache_dir: it bounds the files there"
        )
    return RunConfig(
        feeds=feeds,
        directory="",
        binds=tuple(binds),
        worker_ports=ports,
        taken=taken,
        keys=None if settings.keys is None else os.path.abspath(settings.keys),
        cache_dir=None if settings.cache_dir is None else os.path.abspath(settings.cache_dir),
        cache_bytes=settings.cache_bytes or CACHE_BYTES,
        lease_ttl_s=settings.lease_ttl_s,
        slab_bytes=settings.slab_bytes or 0,
        program=process_name(),
        log_level=logging.getLogger("headrace").getEffectiveLevel(),
        python_path=tuple(os.path.abspath(entry) for entry in sys.path),
        **settings.limits(),
    )


def _addresses(bind: str | list[str] | None) -> list[str]:
    if bind is None:
        return ["tcp://127.0.0.1:*"]
    if not isinstance(bind, (str, list, tuple)):
        raise TypeError(f"bind={bind!r:.80} is neither an address nor a list of them")
    binds = [bind] if isinstance(bind, str) else list(bind)
    for address in binds:
        check_address("bind", address)
    if not binds:
        raise ValueError("bind=[] names no address")
    return binds


def _check_apart(binds: Sequence[str], http: Sequence[str]) -> None:
    """Raise ValueError where two addresses of one server have the same port."""
    named = [(f"bind={bind!r}", bind.removeprefix("tcp://")) for bind in binds]
    named += [(f"http={place!r}", place) for place in http]
    for (one, here), (other, there) in itertools.combinations(named, 2):
        if clash(here, there):
            raise ValueError(f"{one} and {other} are the same port: give another one")


def index_directory(state_dir: str | os.PathLike[str]) -> str:
    path = os.path.join(os.path.abspath(state_dir), "index")
    try:
        with usable("state_dir", state_dir), writing(path):
            os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(
            f"state_dir={os.fspath(state_dir)!r} is not a directory, or holds a file 'index'"
        ) from None
    return path


def _check_exposed(binds: Sequence[str], keys: object, insecure: bool) -> None:
    """Raise ValueError where others could reach a server that asks for no keys."""
    if keys is not None and insecure:
        raise ValueError("keys= and insecure=True: with keys nothing is insecure; give one of them")
    if keys is not None or insecure:
        return
    for address in binds:
        scheme, _, rest = address.partition("://")
        host = rest.rpartition(":")[0].strip("[]")
        if not (scheme == "ipc" or host == "lo" or is_here(host)):
            raise ValueError(
                f"bind={address!r} can be reached from other machines, and without keys everybody "
                "there could take batches: give keys=DIR (headrace keygen DIR makes "
                "them), or insecure=True where all of that network is trusted"
            )
