"""The registry opens every kind of source, and imports no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace_server.files.extras import PackageMissing
from headrace_server.reading import sources
from tests.unit.readers import opened


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"kind 'xml' is none of tfrecord, arrow"):
        opened("xml")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_missing_pyarrow_is_named_with_the_line_that_installs_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PackageMissing, match=r"pip install 'headrace\[arrow\]'"):
        opened(kind)


def test_the_registry_imports_no_source() -> None:
    code = (
        "import sys, headrace_server.reading.sources\n"
        "assert 'pyarrow' not in sys.modules and 'fsspec' not in sys.modules\n"
        "assert 'headrace_server.reading.sources.csv' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_face_is_one_function() -> None:
    assert sources.__all__ == ["open_reader"]
