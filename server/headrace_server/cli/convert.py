"""``headrace convert``: any source into Arrow files, which a feed maps and does not parse."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..files.extras import require
from ..files.manifest import resolve
from ..pipeline.builder import Pipeline
from ..pipeline.declaration import convertible
from ..process.option import Option
from .frame import with_options
from .pipelines import PIPELINE, load_one
from .progress import Progress, counted, reporting_cache, size

_PATTERN = "part-*.arrow"


@with_options(
    PIPELINE,
    Option("directory", "path", metavar="OUT_DIR", positional=True),
    Option("rows_per_file", "integer", default=100_000, least=1),
)
def convert(options: Namespace) -> None:
    """Write the examples of a source as Arrow IPC files, in the order of the source, after
    the stages that make the same of an example in every epoch: map, flat_map, unbatch,
    filter and select, up to the first that draws by chance.  Order, samplers and shape stay
    with the pipeline.

    directory: where the files go; existing files are never overwritten
    rows_per_file: examples of each file
    """
    require("pyarrow", "server", "headrace convert")
    from ..reading.conversion import Conversion

    _, pipeline = load_one(options.pipeline)
    declaration = _whole(pipeline).declaration()
    if declaration.source.kind == "mix":
        raise ValueError(
            "a mix has no order of its own that files could have: convert each of its sources, and "
            "mix what hs.read_arrow reads"
        )
    files = resolve(declaration.source.paths)
    applied, left = convertible(declaration.stages)
    conversion = Conversion(
        declaration,
        applied,
        files,
        Path(options.directory),
        options.rows_per_file,
        reporting_cache(files),
    )
    progress = Progress("converting", conversion.length, "examples")
    for read in conversion.steps():
        progress.to(read)
    parts = conversion.parts
    nbytes, pattern = sum(part.nbytes for part in parts), str(Path(options.directory, _PATTERN))
    amount = f"{counted(sum(part.rows for part in parts), 'row')}, {size(nbytes)}"
    print(f"{amount} in {counted(len(parts), 'file')}: {pattern}")
    for reason, n in conversion.dropped.items():
        print(f"{counted(n, 'example')} left out: {reason}")
    for what, stages in (("are in the files", applied), ("stay with the pipeline", left)):
        if stages:
            print(f"these stages {what}: {', '.join(str(stage.kind) for stage in stages)}")
    print(f"read them with hs.read_arrow({pattern!r})")


def _whole(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with a shape: a declaration needs one, a conversion does not."""
    try:
        pipeline.declaration()
    except ValueError:
        return pipeline.batch(1)
    return pipeline
