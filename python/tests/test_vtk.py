"""VTK files, read back."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import fmm


def read(path):
    """The arrays of a file by their names."""
    head, _, rest = path.read_bytes().partition(b'<AppendedData encoding="raw">_')
    body = rest[: rest.rindex(b"</AppendedData>")]
    tree = ElementTree.fromstring(head + b"</VTKFile>")
    types = {"Float64": "<f8", "Float32": "<f4", "Int64": "<i8", "UInt8": "u1"}
    arrays = {}
    for entry in tree.iter("DataArray"):
        at = int(entry.get("offset"))
        size = int(np.frombuffer(body[at : at + 8], np.uint64)[0])
        array = np.frombuffer(body[at + 8 : at + 8 + size], types[entry.get("type")])
        arrays[entry.get("Name")] = array.reshape(-1, int(entry.get("NumberOfComponents")))
    piece = next(tree.iter("Piece"))
    return int(piece.get("NumberOfPoints")), int(piece.get("NumberOfCells")), arrays


def test_points_with_results(rng, tmp_path):
    x, q = rng.random((60, 3)), rng.random(60)
    sums = fmm.direct("laplace", x, q, outputs=("potential", "gradient"))
    fmm.to_vtk(tmp_path / "sums.vtu", x, sums)
    points, cells, arrays = read(tmp_path / "sums.vtu")
    assert (points, cells) == (60, 60) and np.array_equal(arrays["points"], x)
    assert np.array_equal(arrays["potential"][:, 0], sums.potential) and np.array_equal(arrays["gradient"], sums.gradient)
    fmm.to_vtk(tmp_path / "plane.vtu", x[:, :2], {'a "name"': q, "complex": q * 1j})
    _, _, arrays = read(tmp_path / "plane.vtu")
    assert not arrays["points"][:, 2].any() and np.array_equal(arrays["complex (imaginary)"][:, 0], q)
    with pytest.raises(ValueError, match="one row for each"):
        fmm.to_vtk(tmp_path / "wrong.vtu", x, {"short": q[:5]})


def test_leaves(rng, tmp_path):
    plan = fmm.Plan("laplace", rng.random((4000, 3)), order=4)
    fmm.to_vtk(tmp_path / "leaves.vtu", plan)
    points, cells, arrays = read(tmp_path / "leaves.vtu")
    assert points == 8 * cells and cells == len(plan.boxes())
    assert (arrays["types"] == 12).all() and arrays["offsets"][-1] == points
    corners = arrays["points"].reshape(cells, 8, 3)
    assert np.allclose(corners.min(axis=1), plan.boxes()[:, 0]) and np.allclose(corners.max(axis=1), plan.boxes()[:, 1])


def test_pictures(rng, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ax = fmm.Plan("laplace", rng.random((4000, 3)), order=4).plot()
    ax.figure.savefig(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000 and re.search("leaves", ax.get_title())
    plan = fmm.Plan(fmm.Laplace2D(), rng.random((2000, 2)), order=6, method="laurent")
    colours = plan.plot(near=7)
    direct = sum(len(sources) for targets, sources in plan.near_blocks() if 7 in targets)
    assert [len(line.get_xdata()) for line in colours.lines] == [2000, direct]
    with pytest.raises(ValueError, match="near = 2000"):
        plan.plot(near=2000)
