"""The modules and the cost of an import, and which package may import which."""

import json

import pytest

from tests import conftest

from .interpreter import run

HEAVY = (
    *("tensorflow", "torch", "jax", "keras", "pyarrow", "fsspec", "pandas", "ml_dtypes"),
    *("lightning", "transformers", "accelerate"),
)
#: Processor time beyond numpy, zmq and msgpack.  It is some 30 ms; some machines take longer.
CLIENT_IMPORT_S = 0.35


def loaded_by(statement: str) -> set[str]:
    """Modules that a statement loads in a fresh interpreter."""
    script = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(run(script)))


def packages(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def test_the_client_loads_no_framework_and_nothing_of_the_server():
    found = packages(loaded_by("import headrace"))
    assert {"headrace", "headrace_proto", "numpy", "zmq", "msgpack"} <= found
    assert not found & {*HEAVY, "headrace_server", "google_crc32c"}


def test_the_server_loads_no_package_of_a_source_that_is_not_used_and_nothing_of_the_client():
    found = packages(loaded_by("import headrace_server"))
    assert "headrace_server" in found
    assert not found & {*HEAVY, "headrace", "google_crc32c"}


@pytest.mark.parametrize("process", ["server.locator", "worker.worker"])
def test_a_process_of_the_server_loads_nothing_that_only_some_sources_need(process):
    found = packages(loaded_by(f"import headrace_server.{process}"))
    assert not found & {*HEAVY, "headrace"}


def test_the_protocol_loads_nothing_that_does_input_or_output():
    found = packages(loaded_by("import headrace_proto.messages, headrace_proto.layout"))
    assert not found & {*HEAVY, "headrace", "headrace_server", "zmq"}


def test_the_client_is_cheap_to_import():
    script = """
import time
import numpy, zmq, msgpack
began = time.process_time()
import headrace
print(time.process_time() - began)
"""
    fastest_s = min(float(run(script)) for _ in range(3))
    print(f"import headrace: {fastest_s * 1000:.0f} ms beyond numpy, zmq and msgpack")
    assert fastest_s < CLIENT_IMPORT_S


@pytest.mark.parametrize(
    ("framework", "package", "line"),
    [
        ("tf", "tensorflow", 'framework="tf" needs TensorFlow: pip install tensorflow'),
        ("torch", "torch", 'framework="torch" needs PyTorch: pip install torch'),
        ("jax", "jax", 'framework="jax" needs JAX: pip install jax'),
    ],
)
def test_a_framework_that_is_missing_gives_the_pip_line_before_anything_is_connected(
    framework, package, line
):
    script = f"""
import threading
import headrace
try:
    headrace.connect("tcp://127.0.0.1:1", framework={framework!r}, timeout=0.01)
except ImportError as error:
    print(error)
print(threading.active_count())
"""
    assert run(script, without=(package,)).splitlines() == [line, "1"]


@pytest.mark.parametrize("package", ["lightning", "transformers"])
def test_an_adapter_whose_package_is_missing_gives_the_pip_line(package):
    script = f"""
try:
    import headrace.{package}
except ImportError as error:
    print(error)
"""
    assert f"pip install {package}" in run(script, without=(package,))


def test_a_server_where_only_the_client_was_installed_gives_the_pip_line():
    script = """
import headrace_server as hs
try:
    hs.run(hs.from_examples([{"x": 1}]).batch(1))
except ImportError as error:
    print(error)
"""
    assert "a server needs google_crc32c" in (said := run(script, without=("google_crc32c",)))
    assert "pip install '.[server]' in a checkout" in said


def test_a_package_of_a_source_that_is_missing_gives_the_pip_line():
    script = """
import headrace, headrace_server
from headrace_server.files.extras import require
try:
    require("pyarrow.parquet", "server", "read_parquet")
except ImportError as error:
    assert isinstance(error, headrace.HeadraceError)
    print(error)
"""
    said = run(script, without=("pyarrow",)).strip()
    assert said == (
        "read_parquet needs pyarrow (No module named 'pyarrow'): "
        "pip install '.[server]' in a checkout of headrace"
    )


def test_no_process_of_a_server_loads_arrow_for_a_feed_that_reads_none():
    script = """
from pathlib import Path
import headrace, headrace_server as hs, psutil
pipeline = hs.from_examples([{"x": 1}]).batch(1)
with hs.run(pipeline) as server, headrace.connect(server.address) as feed:
    assert len(list(feed)) == 1
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    maps = [Path(f"/proc/{one.pid}/maps").read_text() for one in processes]
print(len(maps) > 2, any("libarrow" in text for text in maps))
"""
    assert run(script).split() == ["True", "False"]


def test_both_ends_can_be_imported_without_anything_optional():
    script = "import headrace, headrace_server; print(headrace.__version__)"
    optional = (*HEAVY, "google_crc32c", "psutil", "yaml")
    assert run(script, without=optional).strip()


def test_no_module_of_tests_loads_a_framework():
    """Each process of xdist would load it, to collect tests that others run."""
    assert not conftest.LOADED_TO_COLLECT, "import it in a test, or in a fixture"
