"""Errors cross the wire as a code and a text, and come out as what they were."""

import pytest

from headrace_proto import errors
from headrace_proto.errors import (
    DataError,
    FeedClosed,
    ForkedProcess,
    HeadraceError,
    ProtocolError,
    ServerError,
    VersionMismatch,
    code_of,
    from_code,
    near,
)

CLASSES = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
#: Raised by a trainer's own process about itself; no server can mean them.
LOCAL = {FeedClosed, ForkedProcess}
TRAVELLING = [kind for kind in CLASSES if kind not in LOCAL | {HeadraceError}]
BUILT_IN = {
    "DataError": ValueError,
    "FilesMissing": FileNotFoundError,
    "ConnectionLost": ConnectionError,
    "DeadlineExceeded": TimeoutError,
    "UnknownFeed": LookupError,
    "ServerError": RuntimeError,
    "FeedClosed": RuntimeError,
    "ForkedProcess": RuntimeError,
}


@pytest.mark.parametrize("kind", TRAVELLING, ids=lambda k: k.__name__)
def test_an_error_survives_the_wire(kind):
    text = "column 'x' of row 3: 12 is more than 10"
    back = from_code(code_of(kind(text)), text)
    assert type(back) is kind
    assert str(back) == text


def test_no_two_errors_share_a_code():
    assert len({code_of(kind("")) for kind in TRAVELLING}) == len(TRAVELLING)


def test_a_subclass_travels_as_its_nearest_ancestor_that_has_a_code():
    class OneRowIsBad(DataError):
        pass

    assert code_of(OneRowIsBad("x")) == code_of(DataError("x"))
    assert code_of(VersionMismatch("x")) != code_of(ProtocolError("x"))


@pytest.mark.parametrize("code", ["", "newer", "Server", "data "])
def test_a_code_of_a_later_version_is_a_server_error_with_the_same_text(code):
    error = from_code(code, "words")
    assert type(error) is ServerError
    assert str(error) == "words"


@pytest.mark.parametrize(("name", "built_in"), BUILT_IN.items(), ids=BUILT_IN)
def test_an_error_can_be_caught_as_the_built_in_one_it_is(name, built_in):
    kind = getattr(errors, name)
    assert issubclass(kind, built_in)
    assert str(kind("words, 100 % of them")) == "words, 100 % of them"


def test_a_word_that_is_like_a_known_one_is_answered_with_it():
    assert near("sqe", ["x", "seq"]) == "; did you mean 'seq'?"
    assert near("Label", ["x", "label"]) == "; did you mean 'label'?"
    assert near("colour", ["x", "seq"]) == near("", []) == ""
