"""Numbers that functions and columns give for rows; bad ones are in tests/unit/refusals."""

import numpy as np

from headrace_server.reading.row_values import as_int64


def test_whole_numbers_of_any_dtype_become_int64_within_its_limits():
    lowest, highest = -(2**63), 2**63 - 1
    assert as_int64(np.array([0, 2**63, 2**64 - 1], np.uint64)).tolist() == [0, highest, highest]
    assert as_int64(np.array([lowest, highest])).tolist() == [lowest, highest]
    big = np.array([-1e300, -3.0, 7.0, 2.0**63, 1e300])
    assert as_int64(big).tolist() == [lowest, -3, 7, highest, highest]
    assert as_int64(np.array([True, False])).tolist() == [1, 0]
    assert as_int64(np.array([-128, 127], np.int8)).tolist() == [-128, 127]
    assert as_int64(np.float32([2.0**62, 3])).tolist() == [2**62, 3]
    assert as_int64(np.float16([60000, -5])).tolist() == [60000, -5]
