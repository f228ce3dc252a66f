"""Patterns resolve to files, and files that change are refused."""

from __future__ import annotations

import os
import re
import traceback
import uuid
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import fsspec
import pytest

from headrace_proto.errors import FilesMissing
from headrace_server.files import manifest, ranges
from headrace_server.files.manifest import is_remote, resolve
from headrace_server.files.mapped_files import mapped
from headrace_server.files.ranges import open_stream


def written(path: Path, content: bytes = b"abc") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_files_come_in_the_order_of_patterns_sorted_within_each_and_once(tmp_path: Path) -> None:
    for name in ("b-2", "b-1", "a", "sub/b-3"):
        written(tmp_path / name)
    files = resolve([f"{tmp_path}/b-*", str(tmp_path / "a"), f"{tmp_path}/**/*"])
    names = [os.path.relpath(file.path, tmp_path) for file in files]
    assert names == ["b-1", "b-2", "a", "sub/b-3"]
    assert all(file.size == 3 and file.stamp for file in files)


def test_a_pattern_without_files_is_named(tmp_path: Path) -> None:
    written(tmp_path / "a")
    with pytest.raises(FilesMissing, match=r"b\*' matches no file"):
        resolve([f"{tmp_path}/a", f"{tmp_path}/b*"])
    with pytest.raises(FilesMissing, match="nothing' does not exist"):
        resolve([f"{tmp_path}/nothing"])
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FilesMissing, match="link to nothing"):
        resolve([f"{tmp_path}/lin*"])


def test_what_is_no_regular_file_is_named_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for pattern in ("pipe", "p*"):
        with pytest.raises(FilesMissing, match="pipe is no regular file"):
            resolve([f"{tmp_path}/{pattern}"])
    with pytest.raises(FilesMissing, match="is a directory: name the files in it"):
        resolve([str(tmp_path)])


def test_content_is_mapped_read_only_and_streams_seek(tmp_path: Path) -> None:
    (file,) = resolve([str(written(tmp_path / "a", b"0123456789"))])
    data = mapped(file)
    assert data.tobytes() == b"0123456789"
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1
    with open_stream(file) as stream:
        stream.seek(7)
        assert stream.read() == b"789"
    (empty,) = resolve([str(written(tmp_path / "empty", b""))])
    assert mapped(empty).size == 0


@pytest.mark.parametrize("opener", [mapped, open_stream])
def test_a_file_that_was_replaced_or_removed_is_refused(tmp_path: Path, opener: object) -> None:
    assert callable(opener)
    path = written(tmp_path / "a")
    (file,) = resolve([str(path)])
    written(path, b"longer")
    with pytest.raises(FilesMissing, match=r"was replaced .* it had 3 bytes .* has 6"):
        opener(file)
    written(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FilesMissing, match="was replaced"):
        opener(file)
    path.unlink()
    with pytest.raises(FilesMissing, match="went away"):
        opener(file)


def test_remote_files_resolve_and_read_like_local_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    for name in ("b", "a"):
        with fsspec.open(f"{folder}/{name}", "wb") as stream:
            stream.write(name.encode() * 3)
    with fsspec.open(f"{folder}/sub/x", "wb") as stream:
        stream.write(b"x")
    files = resolve([f"{folder}/*"])
    assert [file.path.rpartition("/")[2] for file in files] == ["a", "b"]
    assert all(is_remote(file.path) for file in files)
    assert mapped(files[1]).tobytes() == b"bbb"
    with open_stream(files[0]) as stream:
        assert stream.read() == b"aaa"
    with fsspec.open(files[0].path, "wb") as stream:
        stream.write(b"longer")
    open_stream(files[0]).close()  # it counts as unchanged for a minute
    monkeypatch.setattr(ranges, "_TRUSTED_S", 0.0)
    with pytest.raises(FilesMissing, match="was replaced"):
        open_stream(files[0])
    with pytest.raises(FilesMissing, match="does not exist"):
        resolve([f"{folder}/nothing"])
    with pytest.raises(FilesMissing, match="matches no file"):
        resolve([f"{folder}/nothing*"])


def test_a_chain_of_urls_keeps_its_links(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("one.txt", "1")
        archive.writestr("two.txt", "22")
    files = resolve([f"zip://*.txt::file://{tmp_path}/all.zip"])
    assert [file.path for file in files] == [
        f"zip://{name}.txt::file://{tmp_path}/all.zip" for name in ("one", "two")
    ]
    assert mapped(files[1]).tobytes() == b"22"


class _NoCredentialsError(Exception):
    """As of botocore, whose errors are of no class of Python's."""


class _Away(fsspec.AbstractFileSystem):
    """A storage that fails at one of the calls that reading makes."""

    protocol = "away"
    fails: ClassVar[str] = ""

    def _call(self, name: str, value: Any) -> Any:
        if name == self.fails:
            raise _NoCredentialsError("Unable to locate\ncredentials")
        return value

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        return self._call("listed", [self.info("a.csv")])

    def info(self, path: str, **_: Any) -> Any:
        return self._call("looked up", {"name": "a.csv", "type": "file", "size": 3})

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        stream = mock.MagicMock()
        stream.__enter__.return_value = stream
        stream.read.side_effect = lambda _: self._call("read", b"")
        return stream


@pytest.mark.parametrize("fails", ["listed", "looked up", "read"])
def test_a_storage_that_fails_is_told_in_one_paragraph(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("away", _Away, clobber=True)
    monkeypatch.setattr(_Away, "fails", fails)
    monkeypatch.setattr(manifest, "PAUSES_S", (0.0, 0.0))

    def read() -> None:
        (file,) = resolve(["away://*.csv" if fails == "listed" else "away://a.csv"])
        with open_stream(file) as stream:
            stream.read()

    with pytest.raises(FilesMissing) as caught:
        read()
    told = "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__ and told.count("\n") == 1
    assert re.search(
        rf"away://\S+csv can not be {fails}( \(bytes 0 … 2\))? in 3 attempts: _NoCredentialsError: "
        r"Unable to locate credentials\.  "
        r"Credentials and endpoint of away:// come from .*\(FSSPEC_AWAY_ENDPOINT_URL, …\) or ",
        told,
    )
