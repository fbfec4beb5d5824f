"""Several ranks: what a package without MPI says, and, with MPI, sums on the ranks of a job."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fmm
from fmm import _core

try:
    _core.World(0)
except NotImplementedError:
    BUILT = False
except ValueError:
    BUILT = True


def test_what_is_no_communicator(rng):
    with pytest.raises(TypeError, match="mpi4py"):
        fmm.Plan("laplace", rng.random((5, 3)), comm="world")


@pytest.mark.skipif(BUILT, reason="built with MPI")
def test_a_package_without_mpi_says_so(rng):
    class Communicator:
        Create_keyval = staticmethod(lambda: 1)
        Get_attr = staticmethod(lambda key: None)
        py2f = staticmethod(lambda: 0)

    with pytest.raises(NotImplementedError, match="FMM_PYTHON_MPI=1"):
        fmm.Plan("laplace", rng.random((5, 3)), comm=Communicator())


@pytest.mark.skipif(not BUILT, reason="built without MPI")
@pytest.mark.parametrize("ranks", [1, 3])
def test_sums_of_several_ranks(ranks):
    pytest.importorskip("mpi4py")
    mpirun = shutil.which("mpirun") or pytest.skip("there is no mpirun")
    environment = {
        **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "FMM_RANK_TIMEOUT": "60",
    }  # fmt: skip
    done = subprocess.run(
        [mpirun, "-n", str(ranks), sys.executable, str(Path(__file__).with_name("ranks_of_mpi.py"))],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == [f"rank {k} of {ranks} passed" for k in range(ranks)]
