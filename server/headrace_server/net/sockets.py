"""All options of all ZeroMQ sockets of the server.

Each number prevents a failure that has occurred: a full pipe that drops messages unnoticed, a frame
header that claims 4 GB, a peer that connects and sends nothing, an exit that waits for unsent
messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket as unix
from collections.abc import Iterable
from pathlib import Path

import zmq

from headrace_proto import limits
from headrace_proto.errors import LimitExceeded

#: As plain numbers: an operator of two flags of an enum takes longer than the call of ZeroMQ.
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
NOBLOCK, AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
#: Maximum messages per connection that ZeroMQ queues; credits keep real numbers far below.
_QUEUE = 1024
#: Time after which a connection to a host that does not answer is given up.
_GONE_S = 10


_TAKEN = (
    "Address already in use: another server or program listens there.  End it, or give another "
    "address; the port * of tcp:// is a free one"
)


class CanNotBind(ValueError):
    """An address that a user gave is in use, or does not belong to this machine."""


#: Errors by which a process ends, and which are no faults of the program: no traceback is shown.
EXPECTED = CanNotBind, LimitExceeded


def is_shortage(error: OSError) -> bool:
    """Return whether the same call may succeed later: descriptors or kernel memory are short."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def open_files_limit() -> int:
    """Raise the limit of open files of this process as far as it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def waits(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message can be read; this is cheaper than the exception of a failed read."""
    return bool(int(socket.getsockopt(_EVENTS)) & _READABLE)


def public_router(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Return the socket to which trainers connect."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0  # unsent messages never hold up an exit; the protocol resends
    socket.router_mandatory = True  # a full or missing peer is an error, not silence
    socket.sndhwm = _QUEUE
    socket.rcvhwm = 64  # per connection: bounds what one trainer can make us hold
    socket.maxmsgsize = limits.MAX_UPLOAD_BYTES
    socket.handshake_ivl = 3000  # a connection without a handshake is dropped after 3 s
    # No heartbeats by ZeroMQ: when a peer disconnects while more of its messages wait than the
    # queue takes, the next beat ends the process (libzmq 4.3.5).  TCP notices a dead host, and the
    # protocol a silent trainer.
    socket.heartbeat_ivl = 0
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _GONE_S // 2
    socket.tcp_keepalive_intvl = 1
    socket.tcp_keepalive_cnt = _GONE_S // 2
    socket.tcp_maxrt = 1000 * _GONE_S  # maximum time for data to be acknowledged
    socket.backlog = 512
    socket.ipv6 = False
    return socket


def bind_all(socket: zmq.Socket[bytes], binds: Iterable[str]) -> list[str]:
    """Bind a socket; return the addresses for trainers.  CanNotBind names the one at fault."""
    addresses = []
    for bind in binds:
        _check_free(bind)
        try:
            socket.bind(bind)
        except zmq.ZMQError as error:
            taken = _TAKEN if error.errno == errno.EADDRINUSE else str(error)
            raise CanNotBind(f"bind={bind!r}: {taken}") from None
        endpoint = socket.get_string(zmq.LAST_ENDPOINT)
        addresses.append(endpoint.rstrip("\0"))
    return addresses


def _check_free(bind: str) -> None:
    """CanNotBind where ZeroMQ would remove a file, or the socket of a server that runs.

    The socket of a server that has ended stays, and may be replaced.
    """
    path = Path(bind.removeprefix("ipc://"))
    if not bind.startswith("ipc://") or not os.path.exists(path):
        return
    if not path.is_socket():
        raise CanNotBind(f"bind={bind!r}: there is a file of this name, which is no socket")
    with unix.socket(unix.AF_UNIX) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) in (0, errno.EAGAIN):
            raise CanNotBind(f"bind={bind!r}: {_TAKEN}")
