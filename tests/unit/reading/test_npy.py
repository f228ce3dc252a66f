"""The .npy format is read as numpy writes it, and refused where it is broken."""

from __future__ import annotations

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace_server.reading.sources.npz import npy_array


def saved(array: np.ndarray) -> np.ndarray:
    stream = io.BytesIO()
    np.save(stream, array)
    return np.frombuffer(stream.getvalue(), np.uint8)


@given(
    hnp.arrays(
        st.sampled_from([np.dtype(d) for d in ("u1", "<f4", ">i8", "?", "<c8", "S3", "<U2")]),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    ),
    st.booleans(),
)
def test_arrays_saved_by_numpy_are_read_back(array, fortran):
    if fortran:
        array = np.asfortranarray(array)
    got = npy_array(saved(array))
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()
