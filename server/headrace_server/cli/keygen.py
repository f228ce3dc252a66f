"""``headrace keygen``: pairs of keys for a server, its trainers and its producers.

    keygen DIR               DIR/server.secret  DIR/server.public  DIR/trainers/
    keygen DIR --name alice  DIR/alice.secret   DIR/alice.public
                             where DIR is the server's: the public key in DIR/trainers/ instead,
                             with --producer in DIR/producers/

Nothing that exists is written over, and no key is written where others could exchange it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from argparse import Namespace
from pathlib import Path

import zmq

from headrace_proto.keys import PUBLIC, SECRET, SERVER, check_name, public_text, secret_text

from ..files.durable_file import writing
from ..net.keyring import PRODUCERS, TRAINERS
from ..process.option import Option
from .frame import with_options


def make_pair(directory: Path, name: str | None, right: str = TRAINERS) -> tuple[Path, Path]:
    """Write a pair of keys, the server's or that of a ``right``; return the files, secret first."""
    if not zmq.has("curve"):
        raise ValueError("this build of ZeroMQ has no CURVE, and so no keys")
    owner = SERVER if name is None else check_name("--name", name)
    _make(directory)
    home = directory
    if name is None:
        _make(directory / TRAINERS)
    elif (directory / (SERVER + SECRET)).exists():
        home = directory / right
        _make(home)
    secret, public = directory / (owner + SECRET), home / (owner + PUBLIC)
    for path in (secret, public):
        if os.path.lexists(path):
            raise FileExistsError(f"{path} is there already, and is not written over")
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    _write(secret, secret_text(owner, secret_key))
    try:
        _write(public, public_text(owner, public_key))
    except BaseException:
        secret.unlink()
        raise
    return secret, public


def _make(directory: Path) -> None:
    """Make a directory, if need be, and refuse one in which others can exchange files."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = directory.resolve()
    for path in (place, *place.parents):
        status = path.stat()
        shared = status.st_mode & stat.S_IWOTH
        if shared and (path == place or not status.st_mode & stat.S_ISVTX):
            raise PermissionError(
                f"no key is written to {directory}: everybody can write to {path} "
                f"(mode {stat.S_IMODE(status.st_mode):04o})"
            )
        if path == place and status.st_uid not in (os.getuid(), 0):
            raise PermissionError(f"no key is written to {directory}: it is another user's")


def _write(path: Path, text: str) -> None:
    """Write a new file, whole or not at all."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with writing(path, len(text)), open(fd, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


@with_options(
    Option("directory", "path", positional=True, metavar="DIR"),
    Option("name", "text"),
    Option("producer", "flag", default=False),
)
def keygen(options: Namespace) -> None:
    """Make a pair of keys: the server's, or with --name a trainer's or a producer's.  Keep the
    secret in its directory; copy the public key to the other side.

    directory: where the files go; a new directory is for this user only
    name: make a trainer's pair of this name, and not the server's
    producer: the pair is of a producer of logs, and not of a trainer
    """
    directory, right = Path(options.directory), PRODUCERS if options.producer else TRAINERS
    secret, public = make_pair(directory, options.name, right)
    print(f"{secret}  secret: stays here")
    print(f"{public}  public")
    if options.name is None:
        print(f"the server: --keys {directory}; each trainer needs a copy of {public.name}")
    else:
        print(
            f"the {right[:-1]}: keys= names a directory with {secret.name} and {SERVER}{PUBLIC}; "
            f"the server: {public.name} lies in {right}/ of its keys"
        )
