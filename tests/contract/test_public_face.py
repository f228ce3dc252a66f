"""The public names are exactly the promised ones."""

import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import headrace
import headrace_proto
import headrace_server
from headrace_server.pipeline.declaration import kind_class

CLIENT = {
    *("__version__", "connect", "Feed", "Batch", "SegmentBatch", "Field"),
    *("produce", "Producer", "OpenSequence"),
    "NextQueuedSequenceBatch",
    *("HeadraceError", "DataError", "FilesMissing", "ProtocolError", "VersionMismatch"),
    *("ConnectionLost", "DeadlineExceeded", "UnknownFeed", "LimitExceeded", "ServerError"),
    "NotAllowed",
    *(
        "StaleLease",
        "StateError",
        "Cancelled",
        "FeedClosed",
        "FeedInUse",
        "FeedRewound",
        "ForkedProcess",
    ),
}
SERVER = {
    *("__version__", "run", "Server"),
    *("Pipeline", "Declaration", "Feature", "scalar", "sequence", "fixed"),
    *("read", "IndexedSource", "StreamSource", "Opening", "Stage", "Chunk", "Ragged", "Field"),
    *("read_tfrecord", "read_arrow", "read_parquet", "read_jsonl", "read_csv", "read_npz"),
    *("read_tar", "read_tokens", "from_function", "from_indexed", "from_examples", "mix", "zeros"),
    "live",
    *("on_ray", "RayServers", "Shape", "RowShaper", "Draft", "Part", "Assembly"),
}


@pytest.mark.parametrize(
    ("package", "names"), [(headrace, CLIENT), (headrace_server, SERVER)], ids=["client", "server"]
)
def test_a_package_exports_exactly_what_it_promises(package, names):
    assert sorted(package.__all__) == sorted(names)
    assert all(getattr(package, name) is not None for name in names)


@pytest.mark.parametrize(
    ("room", "folder", "interface"),
    [
        ("reading", "sources", "Source"),
        ("reading", "stages", "Stage"),
        ("making", "shapes", "Shape"),
    ],
)
def test_each_kind_is_a_class_in_a_module_named_as_its_call(
    room: str, folder: str, interface: str
) -> None:
    package = import_module(f"headrace_server.{room}.{folder}")
    base = getattr(import_module(f"headrace_server.{room}.{folder[:-1]}"), interface)
    for _, kind, _ in pkgutil.iter_modules(package.__path__):
        found = kind_class(folder, kind)
        assert issubclass(found, base) and found.__doc__
        inner = {
            "keep": "bucket",
            "cut": "take",
            "staged": "concat",
            "phase": "read_tokens",
        }  # those that other calls declare
        call = inner.get(kind, kind)
        calls = {call, f"read_{call}", f"from_{call}"}
        assert calls & set(SERVER) or hasattr(headrace_server.Pipeline, call)


@pytest.mark.parametrize("package", [headrace, headrace_server], ids=lambda p: p.__name__)
def test_every_public_thing_says_what_it_is(package):
    public = [getattr(package, name) for name in package.__all__ if name != "__version__"]
    assert all(inspect.getdoc(thing) for thing in public)
    assert package.__doc__


def test_one_version_stands_for_all_three_packages():
    assert headrace.__version__ == headrace_server.__version__ == headrace_proto.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?\w+)?", headrace.__version__)


def test_connect_takes_what_is_promised_with_the_promised_defaults():
    parameters = inspect.signature(headrace.connect).parameters
    assert list(parameters) == [
        *("address", "feed", "framework", "prefetch", "commit", "rank", "world_size"),
        *("run", "timeout", "resume", "restart", "order", "keys"),
    ]
    defaults = {name: p.default for name, p in parameters.items() if name != "timeout"}
    assert defaults == {
        "address": inspect.Parameter.empty,
        "feed": None,
        "framework": "numpy",
        "prefetch": "auto",
        "commit": "on_next",
        "rank": None,
        "world_size": None,
        "run": None,
        "resume": None,
        "restart": False,
        "order": "feed",
        "keys": None,
    }
    named_only = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values()]
    assert named_only == [False, *[True] * 12]


def test_run_takes_what_is_promised_and_all_but_the_pipelines_by_name():
    pipelines, *options = inspect.signature(headrace_server.run).parameters.values()
    assert pipelines.name == "pipelines"
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in options)
    defaults = {p.name: p.default for p in options}
    promised = {"workers": 1, "partitions": None, "bind": None, "state_dir": None}
    assert defaults.items() >= promised.items()


def test_a_feed_and_a_batch_can_do_what_is_promised():
    taken_back = ("snapshot", "state_dict", "load_state_dict", "get_state", "set_state")
    for name in (
        *("__iter__", "__next__", "__enter__", "__exit__", "drain", "close", "as_dataset"),
        *taken_back,
    ):
        assert callable(getattr(headrace.Feed, name))
    for name in ("keys", "items", "values", "get", "__getitem__", "__len__", "__contains__"):
        assert callable(getattr(headrace.Batch, name))
