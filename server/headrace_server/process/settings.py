"""The options of a server, each declared once.

    RunSettings     ─► arguments of hs.run and their checks, headrace serve, HEADRACE_*, files
    Limits          ─► fields of RunConfig, too: they go to the processes as they were given
                       docs/commands.md and docs/reference.md have the tables of all

A field's type and default are those in Python; its ``Option`` has the rest, but for the help text,
which is the line on the field in the docstring of its class.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from headrace_proto.errors import near, rewording
from headrace_proto.placement import WHOLE

from .option import Kind, Option, described

if TYPE_CHECKING:
    from ..pipeline.builder import Pipeline
    from ..pipeline.declaration import Declaration

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

#: Default number of snapshots of each feed that are kept.
KEEP_SNAPSHOTS = 20
#: Default bound of the copy of remote files on a disk.
CACHE_BYTES = 2**35
_OPTION = "option"


def _option(kind: Kind, in_python: Any = None, /, **more: Any) -> Any:
    option = Option("", kind, **{"default": in_python, **more})
    return field(default=in_python, metadata={_OPTION: option})


_text = functools.partial(_option, "text")
_path = functools.partial(_option, "path")
_flag = functools.partial(_option, "flag")
_integer = functools.partial(_option, "integer", least=1)
_seconds = functools.partial(_option, "seconds", least=0.1, most=86_400)


def options_of(settings: Any) -> tuple[Option, ...]:
    """Return the options that a class declares, in the order of its fields, positional first."""
    found, kind = [], settings if isinstance(settings, type) else type(settings)
    helps = {n: t for one in reversed(kind.__mro__) for n, t in described(one.__doc__)[1].items()}
    for one in fields(settings):
        if option := one.metadata.get(_OPTION):
            bare = one.name.removesuffix("_s") if option.kind == "seconds" else one.name
            text = helps.get(one.name, "")
            found.append(replace(option, name=bare, argument=one.name, help=text))
    return tuple(sorted(found, key=lambda option: not option.positional))


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Options that each process of a server is given as they are.

    workers: worker processes
    max_trainers: trainers at once
    max_credits: batches that a trainer may hold without a commit
    max_messages_per_s: messages of a trainer to one worker in a second, beyond which it is
      refused
    max_state_bytes: bytes of the states of one example at the server
    remote_cache_bytes: bytes of remote files that a worker keeps in memory, those used last
    """

    workers: int = _integer(1, most=1024)
    max_trainers: int = _integer(4096, most=65_536)
    max_credits: int = _integer(64, most=4096)
    max_messages_per_s: int = _integer(50_000, least=100)
    max_state_bytes: int = _integer(1024**2, most=2**40)
    remote_cache_bytes: int = _integer(2**28, least=1024**2, most=2**60)


@dataclass(frozen=True)
class RunSettings(Limits):
    """The options of ``hs.run`` and ``headrace serve``.

    bind: where trainers connect: tcp:// or ipc://, port * is a free one
    worker_ports: ports of the workers, which trainers reach as they reach bind: publish them too
    keys: keys of this server and of the trainers that it lets in, as headrace keygen makes them
    insecure: bind to addresses that other machines can reach without keys
    lease_ttl_s: time without a message after which a trainer loses its batches
    start_timeout_s: maximum time for opening sources, during which an index does not grow
    worker_timeout_s: time without progress after which a worker is ended and replaced; your
      functions must take less for 64 examples
    worker_memory_bytes: bytes of each worker's memory, without shared memory and mapped files
    shm_dir: where shared memory lies
    partitions: slices of each feed, which determine its batches; with the same number and seed
      any number of workers gives the same batches
    share: share of the partitions that this server owns, as one of n servers of the same feeds:
      those p with p mod n = i; in Python also (i, n)
    slab_bytes: bytes of shared memory of each worker
    state_dir: where positions, commits and states outlive the server; indexes of record files,
      too
    durability: a commit survives a power cut (power) or the death of any process (process); off
      keeps only indexes in the state directory
    cache_dir: where workers keep a copy of what they read of remote files, for later epochs and
      servers of this host
    cache_bytes: bytes of that copy, those used last
    resume: go on from a snapshot: its token, on the command line also a file that holds it
    snapshots: where snapshots are copied to, and found by a server with another state directory
    keep_snapshots: number of snapshots of each feed that are kept, the newest ones; 0 keeps all
    http: where metrics, health and a page are served, without a lock; port 0 is a free one
    """

    pipelines: Pipeline | Mapping[str, Pipeline | Declaration]
    _: KW_ONLY
    # The default is that of the command line: trainers have to know it.
    bind: str | list[str] | None = _text(
        default=("tcp://127.0.0.1:5557",), metavar="ADDRESS", many=True
    )
    worker_ports: tuple[int, int] | str | None = _option(
        "ports", absent="those after the port of bind; where that is any free one, free ones"
    )
    keys: str | os.PathLike[str] | None = _path(
        absent="no keys: every trainer that reaches it is let in"
    )
    insecure: bool = _flag(False)
    lease_ttl_s: float = _seconds(30.0)
    start_timeout_s: float = _seconds(120.0)
    # A worker that has nothing to do adds a beat once a second.
    worker_timeout_s: float = _seconds(60.0, least=2)
    # At least an interpreter with numpy and the threads of its libraries.
    worker_memory_bytes: int | None = _integer(least=256 * 1024**2, most=2**50, absent="any")
    shm_dir: str | os.PathLike[str] | None = _path(absent="/dev/shm")
    partitions: int | None = _integer(
        most=4096, absent="as many as workers; with a state, as many as that has"
    )
    share: tuple[int, int] | str = _option("share", WHOLE, absent="0/1, all")
    slab_bytes: int | None = _integer(
        least=4096, most=2**46, absent="its part of 80 % of the free shared memory, at most 1 GiB"
    )
    state_dir: str | os.PathLike[str] | None = _path(absent="memory only")
    durability: str | None = _text(
        absent="power, where there is a state directory",
        choices=("power", "process", "off"),
        needs_state=True,
    )
    cache_dir: str | os.PathLike[str] | None = _path(absent="memory only, by remote_cache_bytes")
    cache_bytes: int | None = _integer(
        least=2**26, most=2**60, absent=f"{CACHE_BYTES}, where there is a cache_dir"
    )
    resume: Any = _text(metavar="TOKEN", many=True, needs_state=True)
    snapshots: str | None = _text(
        metavar="URL", absent="the state directory alone", needs_state=True
    )
    keep_snapshots: int | None = _integer(
        least=0, absent=f"{KEEP_SNAPSHOTS}, where there is a state directory", needs_state=True
    )
    http: str | None = _text(absent="not at all", metavar="HOST:PORT")

    def __post_init__(self) -> None:
        optional = {one.name for one in fields(self) if one.default is None}
        for option in options_of(self):
            name = option.argument
            value = getattr(self, name)
            if value is not None or name not in optional:
                object.__setattr__(self, name, option.check(value, name))

    def limits(self) -> dict[str, Any]:
        """Return the options that ``RunConfig`` takes as they are."""
        return {one.name: getattr(self, one.name) for one in fields(Limits)}

    def refuse_state(self) -> None:
        """Raise ValueError for an option that needs a state directory, which is not given."""
        for option in options_of(RunSettings):
            value = getattr(self, option.argument)
            if option.needs_state and not (value is None or value is False or value == "off"):
                raise ValueError(
                    f"{option.argument}={value!r:.120} needs a state_dir (with durability 'power' "
                    "or 'process'): it applies to the files there"
                )


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for an argument whose name is not known."""
    for name in given:
        if name not in known:
            raise TypeError(f"got an unexpected keyword argument {name!r}{near(name, known)}")


def taking(settings: Callable[P, S]) -> Callable[[Callable[[S], R]], Callable[P, R]]:
    """Give a function the fields of ``settings`` as arguments; it gets them checked, as one.

    Its docstring lists them.
    """
    signature = inspect.signature(settings)
    arguments = signature.parameters
    listed = (
        replace(one, default=arguments[one.argument].default, many=False)
        for one in options_of(settings)
        if not one.positional
    )
    lines = (
        f"* ``{one.argument}``{one.metavar and f' ({one.metavar})'}: {one.text}" for one in listed
    )
    listing = "\n".join(textwrap.fill(line, 96, subsequent_indent="  ") for line in lines)

    def decorated(function: Callable[[S], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with rewording(TypeError, f"hs.{function.__name__}(): ", TypeError):
                check_names(kwargs, arguments)
                signature.bind(*args, **kwargs)
            return function(settings(*args, **kwargs))

        gives = inspect.signature(function).return_annotation
        vars(call)["__signature__"] = signature.replace(return_annotation=gives)
        call.__doc__ = f"{inspect.getdoc(function)}\n\n{listing}"
        return call

    return decorated
