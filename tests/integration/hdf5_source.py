"""A source that headrace has not, in the one file that a user writes: HDF5 by h5py."""

from __future__ import annotations

import h5py
import numpy as np

import headrace_server as hs


class Hdf5(hs.IndexedSource):
    """The datasets of a group of each file are columns; their first dimension counts examples."""

    def __init__(self, opening: hs.Opening, group: str = "/") -> None:
        if not opening.files:
            raise ValueError("no files: give their paths")
        self._paths = [file.path for file in opening.files]
        self._groups = [h5py.File(path)[group] for path in self._paths]
        first = self._groups[0]
        self.fields = {n: hs.Field(first[n].dtype.name, first[n].shape[1:]) for n in first}
        sizes = [len(group[next(iter(self.fields))]) for group in self._groups]
        self._ends = np.cumsum(sizes)
        self.length = int(self._ends[-1])

    def take(self, rows: slice | np.ndarray) -> hs.Chunk:
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        columns = {
            name: np.empty((len(wanted), *field.shape), field.dtype)
            for name, field in self.fields.items()
        }
        of_file = np.searchsorted(self._ends, wanted, "right")
        for number, group in enumerate(self._groups):
            (places,) = np.nonzero(of_file == number)
            start = self._ends[number] - len(group[next(iter(self.fields))])
            at, back = np.unique(wanted[places] - start, return_inverse=True)
            for name in columns if len(places) else ():
                columns[name][places] = group[name][at][back]  # h5py wants ascending numbers
        return hs.Chunk.of(columns, wanted, self._paths[0])

    def close(self) -> None:
        for group in self._groups:
            group.file.close()
