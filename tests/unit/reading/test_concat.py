"""Sources that are joined read as one that has the examples of all."""

import headrace_server as hs
from headrace_server.reading.chunk import BadRecords

from .test_cut import ID, ids, lines, opened


def test_bad_examples_leave_the_others_in_order(tmp_path):
    for part in range(2):
        text = "".join("{oops\n" if i % 3 == part else f'{{"i": {i}}}\n' for i in range(9))
        (tmp_path / f"{part}.jsonl").write_text(text)
    one, two = (hs.read_jsonl(str(tmp_path / f"{part}.jsonl"), ID) for part in range(2))
    assert ids(opened(one.concat(two), BadRecords(skip=True))) == [
        *(i for i in range(9) if i % 3 != 0),
        *(i for i in range(9) if i % 3 != 1),
    ]


def test_a_source_that_is_read_forward_makes_streams_of_both(tmp_path):
    forward = hs.read_jsonl(lines(tmp_path, 3, 4), ID)
    indexed = hs.from_examples([{"i": i} for i in range(7, 12)], ID)
    reader = opened(forward.concat(indexed))
    assert reader.streams == 3
    assert ids(reader) == list(range(12))
    assert ids(opened(indexed.concat(forward))) == [*range(7, 12), *range(7)]
    assert ids(opened(indexed.concat(forward).skip(4).take(3))) == [11, 0, 1]
