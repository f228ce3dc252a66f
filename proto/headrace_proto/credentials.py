"""A trainer's keys: its own secret, and the public key by which it knows the server.

    DIR/NAME.secret      headrace keygen DIR --name NAME makes it
    DIR/server.public    a copy of the server's

``keys=`` is the directory, or the file with the secret where a directory has several.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from .keys import (
    ENVIRONMENT,
    PUBLIC,
    SECRET,
    SERVER,
    Secret,
    fault_of_mode,
    parse_public,
    parse_secret,
)

_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys by which a server knows a trainer, and the trainer its server."""

    source: str  # how the user named them
    name: str  # of the file, and so mostly of the trainer
    public: str
    server: str
    secret: Secret = field(repr=False)

    def lock(self, socket: zmq.Socket[bytes]) -> None:
        """Let a socket use these keys for all its later connections."""
        socket.curve_serverkey = self.server.encode()
        socket.curve_publickey = self.public.encode()
        socket.curve_secretkey = self.secret.text.encode()


def load_keys(keys: str | os.PathLike[str] | None) -> Keys | None:
    """Return the keys of a path, or of the environment where that is None; None: it has none."""
    named = os.environ.get(ENVIRONMENT) if keys is None else keys
    if keys is None and not named:
        return None
    source = f"{ENVIRONMENT if keys is None else 'keys'}={named!r:.200}"
    if not isinstance(named, (str, os.PathLike)) or not os.fspath(named):
        raise TypeError(f"{source} is not a path")
    if not zmq.has("curve"):
        raise ValueError(f"{source}: this build of ZeroMQ has no CURVE")
    path = _secret_file(Path(named), source)
    known = path.parent / (SERVER + PUBLIC)
    if not known.is_file():
        raise ValueError(
            f"{source}: beside {path.name} there is no {known.name}: copy the server's"
        )
    for file in (path, known):
        if fault := fault_of_mode(file.stat().st_mode, secret=file is path):
            raise ValueError(f"{source}: {file} {fault} {file}")
    secret = parse_secret(_read(path), f"{source}: {path}")
    server = parse_public(_read(known), f"{source}: {known}")
    try:
        public = zmq.curve_public(secret.text.encode()).decode()
    except (zmq.ZMQError, ValueError):
        raise ValueError(f"{source}: {path} holds no key") from None
    return Keys(source, path.name.removesuffix(SECRET), public, server, secret)


def _secret_file(path: Path, source: str) -> Path:
    """Return the file with the trainer's secret."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"{source} is neither a directory nor a file")
    found = sorted(p for p in path.glob(f"*{SECRET}") if p.name != SERVER + SECRET)
    if len(found) != 1:
        raise ValueError(
            f"{source} has the secrets {[p.name for p in found]}: name the file of one "
            f"(headrace keygen {path} --name NAME makes a NAME{SECRET})"
        )
    return found[0]


def _read(path: Path) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read(_MOST_BYTES)
