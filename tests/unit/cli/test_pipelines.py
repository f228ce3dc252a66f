"""Pipelines by the names that a command line gives them."""

from headrace_server.cli.pipelines import load

FEEDS = """
import headrace_server as hs

def one():
    return hs.from_examples([{"x": 1}]).batch(1)

class Holder:
    two = one()

both = {"first": one(), "second": one()}
"""


def test_a_feed_has_the_name_of_its_target_its_function_or_that_of_a_dict(tmp_path):
    (tmp_path / "feeds.py").write_text(FEEDS)
    feeds = tmp_path / "feeds.py"
    found = load([f"{feeds}:one", f"{feeds}:both", f"speech={feeds}:one", f"{feeds}:Holder.two"])
    assert list(found) == ["one", "first", "second", "speech", "two"]
