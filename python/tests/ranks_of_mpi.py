"""Run by ``test_ranks.py`` on several ranks: sums over points that are spread over them."""

import numpy as np
from mpi4py import MPI

import fmm

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
rng = np.random.default_rng(3)
x, y, q = rng.random((5000, 3)), rng.random((3000, 3)), rng.standard_normal((2, 5000))
outputs = ("potential", "gradient")


def mine(array, of=rank):
    return np.array_split(array, size)[of]


# Sums are those of one rank, bit for bit.
own = fmm.Plan("laplace", mine(x), tolerance=1e-5, outputs=outputs, comm=comm, threads=1)
alone = fmm.Plan("laplace", x, tolerance=1e-5, outputs=outputs, threads=1)
for k in range(2):
    found, expected = own.apply(mine(q[k])), alone.apply(q[k])
    assert np.array_equal(found.potential, mine(expected.potential)), rank
    assert np.array_equal(found.gradient, mine(expected.gradient)), rank
sets = own.apply(np.stack([mine(each) for each in q]))
assert np.array_equal(sets.potential[1], found.potential)
assert own.verify(mine(q[0]))["potential"].rel_l2 < 1e-5
assert (own.describe()["ranks"] is None) == (size == 1)

# Targets of their own; another communicator, on which one rank has no points.
other = comm.Dup()
sources, targets, strengths = (x, y, q[0]) if rank == 0 else (x[:0], y[:0], q[0, :0])
u = fmm.evaluate("laplace", sources, strengths, targets, tolerance=1e-5, comm=other, threads=1).potential
if rank == 0:
    exact = fmm.direct("laplace", x, q[0], y).potential
    assert np.linalg.norm(u - exact) < 1e-5 * np.linalg.norm(exact)
own.move(0.5 * mine(x))
moved = own.apply(mine(q[1])).potential
assert np.linalg.norm(moved - 2 * found.potential) < 1e-4 * np.linalg.norm(moved)

# An error of one rank is the error of all, and the plan goes on.
bad = mine(q[0]).copy()
if rank == size - 1:
    bad[3] = np.nan
try:
    own.apply(bad)
except ValueError as e:
    assert "NaN" in str(e) or "rank" in str(e), e
else:
    raise AssertionError("NaN was taken")
assert np.isfinite(own.apply(mine(q[0])).potential).all()
try:
    fmm.Plan("laplace", x, comm=3)
except TypeError as e:
    assert "mpi4py" in str(e)
print(f"rank {rank} of {size} passed", flush=True)
