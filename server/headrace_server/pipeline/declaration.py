"""A declared pipeline: plain, frozen, checked data.

    Declaration = Source, Order, Stage…, Shape, Policy

It can be printed, compared, hashed (``digest`` of ``to_plain``: nested lists, maps, numbers and
strings) and pickled for a process of the server.  Nothing here opens a file or imports user code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeAlias

from headrace_proto.errors import kind_of
from headrace_proto.schema import Field

from .function_names import Sent, resolve

#: Data that a message or a journal can hold: it is checked where it is made.
Plain: TypeAlias = (
    "bool | int | float | str | bytes | Sent | Sequence[Plain] | Mapping[str, Plain] | None"
)
#: Arguments by name, checked when they were declared; their types differ by kind.
Options: TypeAlias = Mapping[str, Any]

#: The kind of the shape of sequences with states.
SEQUENCES = "sequences"
#: By folder: the package in which it is, and the class there that any kind of it subclasses.
_KINDS = {
    "sources": ("headrace_server.reading", "source:Source"),
    "stages": ("headrace_server.reading", "stage:Stage"),
    "shapes": ("headrace_server.making", "shape:Shape"),
}


def kind_class(folder: str, kind: str | Sent) -> Any:
    """Return the class of a kind of ``folder``: "sources", "stages" or "shapes".

    A kind is a module there (``flat_map``, of which the class is ``FlatMap``), or names a class of
    the user's.  ImportError where there is none, TypeError for another class.
    """
    package, based_on = _KINDS[folder]
    if not is_theirs(kind):
        name = "".join(word.title() for word in str(kind).split("_"))
        return getattr(import_module(f"{package}.{folder}.{kind}"), name)
    found, base = resolve(kind), resolve(f"{package}.{based_on}")
    if not (isinstance(found, type) and issubclass(found, base)):
        what = "a class" if isinstance(found, type) else kind_of(found)
        raise TypeError(f"{kind} is {what}, and no subclass of hs.{base.__name__}")
    if lacks := sorted(getattr(found, "__abstractmethods__", ())):
        raise TypeError(f"{kind} does not define {' and '.join(lacks)}()")
    return found


def is_theirs(kind: str | Sent) -> bool:
    """Return whether a kind is a class of the user's."""
    return isinstance(kind, Sent) or ":" in kind


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of a record: its kind, dtype, shape, and the default where it is missing.

    ``scalar`` has shape (); ``fixed`` any fixed shape; ``sequence`` a first dimension that varies
    and then ``shape``.  ``has_default`` distinguishes a default of None from no default.
    """

    kind: Literal["scalar", "fixed", "sequence"]
    dtype: str
    shape: tuple[int, ...] = ()
    default: Any = None
    has_default: bool = False

    @property
    def field(self) -> Field:
        """Its dtype and whole shape; None for the number of steps of a sequence."""
        return Field(self.dtype, (None, *self.shape) if self.kind == "sequence" else self.shape)

    def to_plain(self) -> Plain:
        return [self.kind, self.dtype, list(self.shape), self.default, self.has_default]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of examples.  ``paths`` are files or globs; ``options`` differ by kind."""

    kind: str | Sent
    paths: tuple[str, ...] = ()
    features: Mapping[str, Feature] | None = None  # None: taken from the files
    options: Options = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Source, ...]:
        """The sources that it is made of: of ``cut`` one, of ``concat`` several, else none."""
        return () if is_theirs(self.kind) else tuple(self.options.get("sources", ()))

    @property
    def leaves(self) -> tuple[Source, ...]:
        """The sources that read something: itself, or those that its parts are made of."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) or (self,)

    @property
    def logs(self) -> dict[str, Source]:
        """The logs that it reads, by name."""
        return {leaf.options["name"]: leaf for leaf in self.leaves if leaf.kind == "live"}

    @property
    def made(self) -> Any:
        """Its class, a subclass of ``reading.source.Source``."""
        return kind_class("sources", self.kind)

    @property
    def fields(self) -> Mapping[str, Field] | None:
        """The columns of an example, as far as they are declared."""
        declared: Mapping[str, Field] | None = self.made.declared(self)
        return declared

    @property
    def kinds(self) -> str:
        """The kinds of its leaves, for people."""
        return " and ".join(dict.fromkeys(str(leaf.kind) for leaf in self.leaves))

    def to_plain(self) -> dict[str, Any]:
        features, parts = self.features, [part.to_plain() for part in self.parts]
        return {
            "kind": self.kind,
            "paths": list(self.paths),
            "features": features and [[name, f.to_plain()] for name, f in features.items()],
            "options": {**self.options, **({"sources": parts} if parts else {})},
        }


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """In which order, and how often, the examples of the source are gone through.

    A seed without ``window`` and ``blocks``: the exact permutation.  ``epochs`` None: for ever.
    Without ``across_batches`` a batch ends with its epoch.
    """

    seed: int | None = None
    window: int | None = None
    blocks: int | None = None  # number of blocks that are mixed
    block_bytes: int | None = None  # of a block, where the files do not show it
    epochs: int | None = 1
    reshuffle: bool = True  # another order in each epoch
    across_batches: bool = True  # whether a batch may hold examples of two epochs


@dataclass(frozen=True, slots=True)
class Stage:
    """One step between source and shape: ``map``, ``filter``, ``select`` …"""

    kind: str | Sent
    options: Options = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its kind and its function, for people."""
        function = self.options.get("function")
        return f"{self.kind}" if function is None else f"{self.kind} function {function}"

    def made(self) -> Any:
        """Return a new object of its class, a subclass of ``reading.stage.Stage``."""
        return kind_class("stages", self.kind)(**self.options)


@dataclass(frozen=True, slots=True)
class Shape:
    """The way batches are formed: ``batch`` …"""

    kind: str | Sent
    options: Options = field(default_factory=dict)

    def made(self) -> Any:
        """Return a new object of its class, a subclass of ``making.shape.Shape``."""
        made = kind_class("shapes", self.kind)(**self.options)
        made.kind = str(self.kind)
        return made


@dataclass(frozen=True, slots=True)
class Policy:
    """The treatment of examples that break a rule; ``max_bad_examples`` None: any number."""

    on_bad_example: Literal["fail", "skip"] = "fail"
    max_bad_examples: int | None = None

    def too_bad(self, bad: Mapping[str, int]) -> str:
        """Return the text of an error if there are more bad examples than are allowed, else ""."""
        limit = self.max_bad_examples
        if limit is None or sum(bad.values()) <= limit:
            return ""
        listed = ", ".join(f"{n} {reason}" for reason, n in sorted(bad.items()))
        return (
            f"more than max_bad_examples={limit} bad examples: {listed}, over all epochs; the log "
            "of the server names the first of them"
        )


@dataclass(frozen=True, slots=True)
class Declaration:
    """A whole pipeline: ``source``, ``order``, ``stages``, ``shape`` and ``policy``."""

    source: Source
    order: ReadingOrder
    stages: tuple[Stage, ...]
    shape: Shape
    policy: Policy = Policy()

    def to_plain(self) -> dict[str, Any]:
        return {
            "source": self.source.to_plain(),
            "order": asdict(self.order),
            "stages": [{"kind": s.kind, "options": dict(s.options)} for s in self.stages],
            "shape": {"kind": self.shape.kind, **self.shape.options},
            "policy": asdict(self.policy),
        }

    @property
    def segmented(self) -> bool:
        """Whether batches are of segments, with states."""
        return self.shape.kind == SEQUENCES

    @property
    def live(self) -> bool:
        """Whether segments of a log are handed out before their sequences have ended."""
        return self.segmented and grows(self.source, self.order, self.stages)

    @property
    def recounting_stage(self) -> str:
        """The first stage that may change how many examples there are; "" where there is none."""
        return next((str(s.kind) for s in self.stages if not s.made().keeps_count), "")

    def uncounted(self, ranks: bool = False) -> str:
        """Return why examples and their steps do not show how many batches they make; "" where
        they do.  ``ranks``: whether trainers have ranks."""
        if self.source.logs:
            return "producers push to its log"
        if self.segmented:
            if "lane" in self.shape.options:
                return "only reading shows which lane has which example (lane=)"
            if self.shape.options["order"] != "lanes" and not ranks:
                return (
                    "how many rows the last batches have depends on when states are saved; with "
                    "ranks, or in order='lanes', it does not"
                )
        elif not self.shape.made().counted:
            return "how many rows make a batch depends on the data"
        if self.order.epochs is None and self.order.across_batches:
            return "it repeats for ever"
        return ""

    def examples_digest(self, *more: Plain) -> str:
        """Return a digest of what shows which examples the shape gets, and of more.

        A function may have the name of another feed's, but not of another one of the same feed.
        """
        plain = self.to_plain()
        what = [plain[name] for name in ("source", "stages", "policy")]
        return digest([what, *more])

    def recounted(self) -> str:
        """Return why the source does not show how many examples there are; "" where it does."""
        if other := self.recounting_stage:
            return f"{other} may change how many examples there are"
        return "bad examples are skipped" if self.policy.on_bad_example == "skip" else ""

    def batches_of(self, rows: int) -> int:
        """Return the number of batches that a partition makes of so many rows; see ``uncounted``.

        These are the rows of an epoch where batches end with it.
        """
        full, rest = divmod(rows, self.shape.options["batch_size"])
        return int(full + (rest > 0 and self.shape.options["allow_smaller_final_batch"]))


def grows(source: Source, order: ReadingOrder, stages: tuple[Stage, ...]) -> bool:
    """Return whether segments can be cut of examples that grow: of a log, in its own order.

    Filters may judge them by columns of their context alone.
    """
    features = source.features or {}
    context = {name for name, feature in features.items() if not feature.field.ragged_dims}
    early = (
        stage.kind == "select"
        or (
            stage.kind == "filter"
            and "columns" in stage.options
            and context.issuperset(stage.options["columns"])
        )
        for stage in stages
    )
    return source.kind == "live" and order.seed is None and all(early)


def convertible(stages: tuple[Stage, ...]) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """Return the stages that files can hold the result of, and those that stay with the pipeline.

    Stages that draw by chance stay, for they draw anew in each epoch, and so do those after them.
    """
    count = next((i for i, stage in enumerate(stages) if not stage.made().repeatable), len(stages))
    return stages[:count], stages[count:]


def digest(plain: Plain) -> str:
    """Return 16 hex digits of plain data."""
    text = json.dumps(plain, sort_keys=True, default=jsonable)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def jsonable(value: object) -> Plain:
    """Return a stand-in for bytes or a function, in JSON that is only compared."""
    if isinstance(value, Sent):
        return value.name
    if isinstance(value, bytes):
        return {"bytes": hashlib.blake2b(value, digest_size=16).hexdigest()}
    raise TypeError(f"a declaration holds plain data, not {type(value).__name__}")


def fields_text(fields: Mapping[str, Field]) -> str:
    """Return a schema as text."""
    return "{" + ", ".join(f"{name}: {field}" for name, field in fields.items()) + "}"


def unbatched_field(name: str, field: Field) -> Field:
    """Return the field of a row of a batched column; ValueError without a batch dimension."""
    if not field.shape:
        raise ValueError(
            f"unbatch (or enqueue_many=True): column {name!r} is {field}, one value per "
            "example, and has no rows; .select(names) chooses columns, a map before it may "
            "repeat a value for every row"
        )
    return Field(field.dtype, field.shape[1:])
