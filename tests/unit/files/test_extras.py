"""A package that is not there is named with the line that installs it."""

import pytest

from headrace_proto.errors import HeadraceError
from headrace_server.files.extras import PackageMissing, require


def test_a_missing_package_gives_the_pip_line():
    with pytest.raises(
        PackageMissing, match=r"read_x needs nosuchpkg .*pip install '\.\[x\]' in a checkout"
    ):
        require("nosuchpkg.part", "x", "read_x")
    assert issubclass(PackageMissing, HeadraceError)
    assert issubclass(PackageMissing, ImportError)


def test_a_package_that_is_there_is_given():
    assert require("json", "x", "y").loads("1") == 1
