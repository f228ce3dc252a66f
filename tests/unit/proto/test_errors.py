"""Errors cross the wire as a code and a text, and come out as what they were."""

import pytest

from headrace_proto import errors
from headrace_proto.errors import (
    FeedClosed,
    ForkedProcess,
    HeadraceError,
    ServerError,
    code_of,
    from_code,
    near,
    one_line,
    shown,
)

CLASSES = [kind for name, kind in vars(errors).items() if name[0].isupper()]
#: Raised by a trainer's own process about itself; no server can mean them.
LOCAL = {FeedClosed, ForkedProcess}
TRAVELLING = [kind for kind in CLASSES if kind not in LOCAL | {HeadraceError}]


@pytest.mark.parametrize("kind", TRAVELLING, ids=lambda k: k.__name__)
def test_an_error_survives_the_wire(kind):
    text = "column 'x' of row 3: 12 is more than 10"
    back = from_code(code_of(kind(text)), text)
    assert type(back) is kind
    assert str(back) == text


def test_no_two_errors_share_a_code():
    assert len({code_of(kind("")) for kind in TRAVELLING}) == len(TRAVELLING)


@pytest.mark.parametrize("code", ["", "newer", "Server", "data "])
def test_a_code_of_a_later_version_is_a_server_error_with_the_same_text(code):
    error = from_code(code, "words")
    assert type(error) is ServerError
    assert str(error) == "words"


def test_a_word_that_is_like_a_known_one_is_answered_with_it():
    assert near("sqe", ["x", "seq"]) == "; did you mean 'seq'?"
    assert near("Label", ["x", "label"]) == "; did you mean 'label'?"
    assert near("colour", ["x", "seq"]) == near("", []) == ""


def test_a_text_of_others_is_shown_so_that_no_terminal_obeys_it_and_no_line_is_forged():
    said = "a\x1b[2Jb\x07\x9b\r\u202e\udc80c\nERROR é☃"
    assert one_line(said) == "a\\x1b[2Jb\\x07\\x9b\\r\\u202e\\udc80c\\nERROR é☃"
    assert shown(said) == "a\\x1b[2Jb\\x07\\x9b\\r\\u202e\\udc80c\n  ERROR é☃"
    assert shown(shown(said)) == shown(said)
    assert one_line("x" * 99, 10) == "x" * 9 + "…" and len(one_line("\n" * 99, 10)) == 10
    assert str(from_code("server", said)) == shown(said)
