"""Sources, with which a pipeline begins, and the kinds of features that records have.

    read_tfrecord read_arrow read_parquet read_jsonl read_csv read_npz read_tar     files
    read_tokens                                          long streams of integers
    from_function                                        what a function of the user's yields
    from_indexed                                         what has a length and items
    from_examples                                        examples in memory
    live                                                 a log that producers push to

Paths are files, patterns (``*``, ``?``, ``[…]``, ``**``) and URLs, one or a list of them.  Columns
that are not named by ``features`` are not read; where ``features`` may be left out, the files or
the first examples show the columns.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from headrace_proto.errors import kind_of

from .argument_checks import (
    check_kind,
    checked_bytes,
    checked_dtype,
    checked_int,
    checked_number,
    checked_shape,
)
from .builder import Pipeline
from .declaration import Feature, Source, Stage, kind_class
from .examples import as_array, fitted_array, pack_examples
from .function_names import Sent, name_of
from .signatures import checking

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Features = Mapping[str, Feature]


def scalar(dtype: object, *, default: object = ...) -> Feature:
    """Return one value.  A record that lacks it is a DataError unless there is a default."""
    return _feature("scalar", dtype, (), default)


def fixed(dtype: object, shape: Iterable[int], *, default: object = ...) -> Feature:
    """Return a feature that is an array of a fixed shape.

    The default may be a single value for all elements.
    """
    return _feature("fixed", dtype, checked_shape("shape", shape), default)


def sequence(dtype: object, shape: Iterable[int] = (), *, default: object = ...) -> Feature:
    """Return a feature of any number of steps of a shape: ``[T, *shape]``.

    ``default=[]`` is one without steps.
    """
    return _feature("sequence", dtype, checked_shape("shape", shape), default)


def _feature(
    kind: Literal["scalar", "fixed", "sequence"],
    dtype: object,
    shape: tuple[int, ...],
    default: object,
) -> Feature:
    feature = Feature(kind, checked_dtype("dtype", dtype), shape)
    if default is ...:
        return feature
    return replace(feature, default=_default(feature, default), has_default=True)


def _default(feature: Feature, value: object) -> Any:
    """Return the default as nested lists, of the whole shape."""
    if value is None:
        raise TypeError("default=None is no value: leave it out where a record must have one")
    field = feature.field
    if field.dtype.startswith("complex"):
        raise ValueError(f"default={value!r:.80}: a feature of {field.dtype} can have none")
    try:
        if feature.kind == "fixed":
            value = np.broadcast_to(as_array(value), feature.shape)
        elif isinstance(value, np.ndarray) and value.shape == (0,):
            value = []
        array = fitted_array(value, field)
    except ValueError as error:
        raise ValueError(f"default={value!r:.80} does not fit {field}: {error}") from None
    # The floats of ml_dtypes become plain ones, which hold them.
    return (array.astype("float64") if array.dtype.kind == "V" else array).tolist()


def _files(kind: str | Sent, paths: Any, features: Features | None, **options: object) -> Pipeline:
    return Pipeline(Source(kind, paths, features, options))


@checking
def read(
    source: type | str,
    paths: Paths | None = None,
    features: Features | None = None,
    **options: object,
) -> Pipeline:
    """Read with a class of your own: a subclass of ``hs.IndexedSource`` or ``hs.StreamSource``.

    Give the class, or its name "module:Class".  Each process that reads opens the files that
    ``paths`` name with ``Class(opening, **options)``; options are plain data.  Without
    ``features`` the class determines the columns.  See docs/pipelines.md.
    """
    kind, files = name_of(source, "source"), paths or ()
    made = kind_class("sources", kind)
    try:
        inspect.signature(made.open if "open" in vars(made) else made).bind(None, **options)
    except TypeError as error:
        raise TypeError(f"read({kind}): {error}") from None
    return Pipeline(Source(kind, files, features, options))  # type: ignore[arg-type]


@checking
def read_tfrecord(paths: Paths, features: Features) -> Pipeline:
    """Read TFRecord files of tf.train.Example or SequenceExample.

    Each file shows whether it is compressed, with gzip or zlib; compressed files can not be read by
    number.  Checksums are checked.
    """
    return _files("tfrecord", paths, features)


@checking
def read_arrow(paths: Paths, features: Features | None = None) -> Pipeline:
    """Read Arrow IPC files, memory-mapped: the fastest source."""
    return _files("arrow", paths, features)


@checking
def read_parquet(
    paths: Paths, features: Features | None = None, *, group_by: str | None = None
) -> Pipeline:
    """Read Parquet files.

    A worker reads whole row groups, so an exact shuffle is slow: give ``shuffle`` a window.

    With ``group_by``, the name of a column, a row of a file is a *step*: neighbouring rows of a
    file in which the column has the same value make one example.  Each other column becomes a
    sequence of the rows' values.
    """
    if group_by is None:
        return _files("parquet", paths, features)
    check_kind("group_by", group_by, str, "the name of a column")
    return _files("parquet", paths, features, group_by=group_by)


@checking
def read_jsonl(paths: Paths, features: Features | None = None) -> Pipeline:
    """Read files of one JSON object per line; a column is a key of the object."""
    return _files("jsonl", paths, features)


@checking
def read_csv(paths: Paths, features: Features | None = None, *, delimiter: str = ",") -> Pipeline:
    """Read CSV files, whose first row names the columns.  A row is an example of scalars."""
    check_kind("delimiter", delimiter, str, "a str")
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise ValueError(f"delimiter={delimiter!r:.80} is not one character that may separate")
    for name, feature in (features or {}).items():
        if feature.kind != "scalar":
            raise ValueError(
                f"features[{name!r}] is {feature.field}: a cell of a CSV file is one value; "
                "declare a scalar, and make the rest of it in .map"
            )
    return _files("csv", paths, features, delimiter=delimiter)


@checking
def read_npz(
    paths: Paths, features: Features | None = None, *, ragged: Mapping[str, str] | None = None
) -> Pipeline:
    """Read arrays of .npz and .npy files: their first dimension counts the examples.

    The column of a .npy file has the name of the file, up to its first dot.  ``ragged`` maps a
    column to the array that holds its offsets: example i has the values from offset i up to offset
    i + 1.
    """
    return _files("npz", paths, features, ragged=ragged)


@checking
def read_tar(paths: Paths, features: Features | None = None) -> Pipeline:
    """Read tar files whose neighbouring members of one stem make an example (WebDataset layout).

    The part after the stem's first dot names the column: ``0001.txt`` has column ``txt`` of 0001.
    """
    return _files("tar", paths, features)


@checking
def read_tokens(
    paths: Paths,
    dtype: Any | None = None,
    *,
    window: int | None = None,
    lanes: int | None = None,
    shift: int = 1,
    stride: int | None = None,
    phase: Literal["random"] | None = None,
    phase_seed: int = 0,
) -> Pipeline:
    """Read long streams of tokens, memory-mapped: .npy arrays ``[n]``, or files of bare integers.

    ``dtype`` is that of files of bare integers, such as "uint16".  With ``window`` an example has
    ``window`` adjacent tokens as ``tokens``, and as ``targets`` those ``shift`` tokens later; the
    next example begins where it ends, or ``stride`` tokens after it began.  With
    ``phase="random"`` all windows of an epoch begin 0 … ``stride`` - 1 tokens later, as
    ``phase_seed`` and the epoch draw: so a model sees tokens at other places of its context in each
    epoch.  With ``lanes`` each file is cut into that many long examples with a ``key``, for
    ``batch_sequences_with_states``.  ``shift=0``: no targets.
    """
    if (window is None) == (lanes is None):
        raise ValueError(
            f"window={window!r:.80} and lanes={lanes!r:.80}: exactly one of them is given"
        )
    if window is None and (stride is not None or phase is not None):
        raise ValueError(f"stride={stride} and phase={phase!r} are of windows: give window=")
    if stride is not None and window is not None and stride > window:
        raise ValueError(
            f"stride={stride} is more than window={window}: the tokens between one window and the "
            "next would be in none"
        )
    if phase_seed and phase is None:
        raise ValueError(f"phase_seed={phase_seed} needs phase='random': nothing is drawn")
    stages: tuple[Stage, ...] = ()
    if window is not None and phase is not None:
        cut = {"window": window, "stride": stride or window, "shift": shift, "seed": phase_seed}
        stages = (Stage("phase", cut),)
        stride, window, shift = stride or window, window + (stride or window) - 1 + shift, 0
    features = None
    if dtype is not None:
        if not dtype.startswith(("int", "uint")):
            raise ValueError(f"dtype={dtype!r} is none of integers, which tokens are")
        tokens = sequence(dtype) if window is None else fixed(dtype, (window,))
        features = {"key": scalar("bytes")} if window is None else {}
        features |= {"tokens": tokens, **({"targets": tokens} if shift else {})}
    elif not all(path.endswith(".npy") for path in paths):  # type: ignore[union-attr]
        raise ValueError("dtype=None: only .npy files say what they hold; give dtype='uint16', say")
    options = {"dtype": dtype, "window": window, "lanes": lanes, "shift": shift}
    if stride not in (None, window):
        options["stride"] = stride
    return replace(_files("tokens", paths, features, **options), _stages=stages)


@checking
def from_function(
    fn: Callable[..., object] | str,
    *args: object,
    features: Features | None = None,
    shards: int | None = None,
    **kwargs: object,
) -> Pipeline:
    """Read the examples that ``fn(*args, **kwargs)`` returns in a worker: any iterable of dicts.

    With ``shards`` it is called once for each shard, with its number as ``shard`` and, if ``fn``
    takes that, the number of shards as ``num_shards``; several partitions then share the source.
    Arguments are plain data.

    The examples must be the same in every call, in the same order.  To go on after a worker's death
    or from a snapshot, ``fn`` is called again, and the examples before that place are read and
    compared: where they differ the feed stops.  So it must not take them from a queue or a socket,
    which gives each only once: write these to files, and read the files.

    A generator may take long for an example: those that it has yielded are handed out after 50 ms,
    and trainers are told what they wait for.  Declare ``features`` then; without them the start
    waits for the first 64 examples.  Each stream is iterated in a thread of its own.
    """
    for name in ("shard", "num_shards"):
        if shards is not None and name in kwargs:
            raise ValueError(f"{name}= is given by the server where shards= is: leave it out")
    options = {"function": name_of(fn), "args": list(args), "kwargs": kwargs, "shards": shards}
    return _files("function", (), features, **options)


@checking
def from_indexed(
    examples: object,
    *args: object,
    features: Features | None = None,
    io_threads: int = 1,
    lengths: str | Iterable[int] | None = None,
    **kwargs: object,
) -> Pipeline:
    """Read the examples of anything with ``len`` and ``[i]``, whose items are dicts of columns.

    ``examples`` is such an object, which is sent to the workers, or a function, or its name
    "module:function", that returns one there when it is called with ``args`` and ``kwargs``.  They
    are read by number, so a shuffle is exact.

    An object with ``__getitems__`` is read by lists of numbers.  With ``io_threads`` that many
    threads of each worker call ``[i]`` at once: only for an object that allows it.

    ``lengths`` are the steps of the sequences of each example, or the name of the object's
    attribute that has them.  With them ``len(feed)`` of segments is known.
    """
    checked_int("io_threads", io_threads, 1, 256)
    called = isinstance(examples, str | type) or not hasattr(examples, "__getitem__")
    if called:
        function = name_of(examples, "examples")
    elif args or kwargs:
        raise TypeError(f"from_indexed({kind_of(examples)}) takes no arguments for a function")
    else:
        function = Sent(f"{type(examples).__module__}:{type(examples).__qualname__}", examples)
    options: dict[str, Any] = {
        "function": function,
        "args": list(args),
        "kwargs": kwargs,
        "called": called,
    }
    if io_threads > 1:
        options["io_threads"] = io_threads
    if isinstance(lengths, str):
        options["lengths"] = lengths
    elif lengths is not None:
        steps = np.asarray([*lengths])
        if steps.ndim != 1 or steps.dtype.kind not in "iu":
            raise TypeError(
                f"lengths= gives {steps.dtype}{list(steps.shape)}; one integer for each example, "
                "or the name of an attribute, is wanted"
            )
        options["lengths"] = steps.astype(np.int64).tobytes()
    return _files("indexed", (), features, **options)


@checking
def from_examples(
    examples: Iterable[Mapping[str, object]], features: Features | None = None
) -> Pipeline:
    """Read examples in memory: dicts of column to number, array, list, str or bytes.

    Each worker has a copy of them: for tests, notebooks, small data.
    """
    if isinstance(examples, (str, bytes, Mapping)) or not np.iterable(examples):
        raise TypeError(f"examples={examples!r:.80} is not a list of dicts of column to value")
    return _files("examples", (), features, **pack_examples(examples, features))


#: A log's name is that of a directory and goes in messages.
_LOG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@checking
def live(
    name: str,
    features: Features,
    *,
    idle_timeout_s: float | None = None,
    max_open: int = 100_000,
    retain: int | str = 0,
    max_backlog: int | str = "2GB",
    required: bool = True,
) -> Pipeline:
    """Read a log, which the server keeps and to which producers push: ``headrace.produce``.

    A sequence is an example once it has ended, and comes in the order of the ends; only
    ``batch_sequences_with_states`` directly behind cuts segments of it before.  Its steps give the
    columns that ``sequence`` declares, its context the others; a whole example gives all.  The
    feed waits for examples until a producer closes the log.  Feeds of one server may read one log,
    each by itself; they declare it alike.

    A sequence without news for ``idle_timeout_s`` seconds ends there (None: never).  ``max_open``
    bounds the open sequences of each partition: a producer waits for a place.  Producers get no
    credit while the slowest feed is ``max_backlog`` bytes behind in a partition.  ``retain`` bytes
    of each partition stay when no feed needs them.  Bytes are a number, or text such as "20GB".

    A feed with ``required=False`` holds up nobody: it loses what is more than ``retain``, or near
    ``max_backlog``, and what other feeds need no longer.  What it loses is counted.
    """
    if not isinstance(name, str) or not _LOG.fullmatch(name):
        raise ValueError(
            f"name={name!r:.200} is not letters, digits, '_', '.', '-' (1 to 100), as the name of "
            "a log is"
        )
    if with_default := [key for key, one in features.items() if one.has_default]:
        raise ValueError(
            f"features[{with_default[0]!r}] has a default: producers give each column of a log"
        )
    if idle_timeout_s is not None:
        idle_timeout_s = checked_number("idle_timeout_s", idle_timeout_s, 0.1, 1e9)
    return _files(
        "live",
        (),
        features,
        name=name,
        idle_timeout_s=idle_timeout_s,
        max_open=max_open,
        retain=checked_bytes("retain", retain),
        max_backlog=checked_bytes("max_backlog", max_backlog),
        **({} if required else {"required": False}),
    )
