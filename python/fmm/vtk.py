"""Files for ParaView: VTK's XML format for unstructured grids, with data appended in binary."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._plan import Plan, Result

_VERTEX, _QUAD, _HEXAHEDRON = 1, 9, 12
_TYPES = {"f4": "Float32", "f8": "Float64", "i4": "Int32", "i8": "Int64", "u1": "UInt8"}


def to_vtk(
    path: str | os.PathLike[str], what: ArrayLike | Plan, result: Result | Mapping[str, ArrayLike] | None = None
) -> None:
    """Writes points with the arrays of a result, or the leaves of a plan, as a ``.vtu`` file.

    ``what`` is an (N, 2) or (N, 3) array, or a plan. ``result`` is a :class:`Result` or a dict of arrays (N, …); complex
    arrays are written as two.
    """
    if isinstance(what, Plan):
        if result is not None:
            raise ValueError("the leaves of a plan have no result; give the points instead of the plan")
        _write(path, *_boxes(what.boxes()), {})
        return
    points = np.atleast_2d(np.asarray(what, dtype=np.float64))
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise ValueError(f"points have shape {points.shape}, expected (N, 2) or (N, 3)")
    n = len(points)
    cells = np.arange(n).reshape(n, 1)
    arrays: dict[str, NDArray[Any]] = {}
    items = dict(result.items()) if isinstance(result, Result) else dict(result or {})
    for name, array in items.items():
        array = np.asarray(array)
        if array.shape[:1] != (n,):
            raise ValueError(f"{name} has shape {array.shape}, expected one row for each of {n} points")
        if array.dtype.kind == "c":
            arrays[f"{name} (real)"], arrays[f"{name} (imaginary)"] = array.real, array.imag
        else:
            arrays[name] = array
    _write(path, _in_space(points), cells, _VERTEX, arrays)


def _in_space(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points with three coordinates."""
    return np.pad(points, ((0, 0), (0, 3 - points.shape[1])))


def _boxes(boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """The corners of boxes, in VTK's order, with their cells."""
    order = [(0, 0), (1, 0), (1, 1), (0, 1)]
    flat = boxes.shape[2] == 2
    corners = order if flat else [(*c, 0) for c in order] + [(*c, 1) for c in order]
    axes = np.arange(boxes.shape[2])
    points = np.concatenate([boxes[:, list(c), axes][:, None] for c in corners], axis=1)
    cells = np.arange(points.shape[0] * len(corners)).reshape(-1, len(corners))
    return _in_space(points.reshape(-1, boxes.shape[2])), cells, _QUAD if flat else _HEXAHEDRON


def _write(
    path: str | os.PathLike[str],
    points: NDArray[np.float64],
    cells: NDArray[np.int64],
    kind: int,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    data: list[bytes] = []

    def entry(name: str, array: NDArray[Any]) -> str:
        array = np.ascontiguousarray(array.reshape(len(array), -1) if array.size else array.reshape(len(array), 1))
        if array.dtype.str[1:] not in _TYPES:
            array = array.astype(np.float64)
        offset = sum(map(len, data))
        raw = array.tobytes()
        data.append(np.uint64(len(raw)).tobytes() + raw)
        of = f'type="{_TYPES[array.dtype.str[1:]]}" NumberOfComponents="{array.shape[1]}"'
        return f'<DataArray {of} Name="{html.escape(name)}" format="appended" offset="{offset}"/>'

    ends = cells.shape[1] * (1 + np.arange(len(cells)))
    values = "".join(entry(name, array) for name, array in arrays.items())
    coordinates = entry("points", points)
    topology = entry("connectivity", cells.reshape(-1, 1)) + entry("offsets", ends.reshape(-1, 1))
    topology += entry("types", np.full((len(cells), 1), kind, np.uint8))
    order = "LittleEndian" if sys.byteorder == "little" else "BigEndian"
    head = (
        f'<VTKFile type="UnstructuredGrid" version="1.0" byte_order="{order}" header_type="UInt64">'
        f'<UnstructuredGrid><Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}">'
        f"<PointData>{values}</PointData><Points>{coordinates}</Points><Cells>{topology}</Cells>"
        '</Piece></UnstructuredGrid><AppendedData encoding="raw">_'
    )
    with open(path, "wb") as file:
        file.write(head.encode())
        file.writelines(data)
        file.write(b"</AppendedData></VTKFile>")
