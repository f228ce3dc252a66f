"""The builder that users write, and the declaration it yields."""

from .builder import Pipeline
from .by_source import by_source
from .declaration import Declaration, Feature
from .initial import zeros
from .sources import (
    fixed,
    from_examples,
    from_function,
    read_arrow,
    read_csv,
    read_jsonl,
    read_npz,
    read_parquet,
    read_tar,
    read_tfrecord,
    scalar,
    sequence,
)

__all__ = [
    "Declaration",
    "Feature",
    "Pipeline",
    "by_source",
    "fixed",
    "from_examples",
    "from_function",
    "read_arrow",
    "read_csv",
    "read_jsonl",
    "read_npz",
    "read_parquet",
    "read_tar",
    "read_tfrecord",
    "scalar",
    "sequence",
    "zeros",
]
