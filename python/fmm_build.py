"""The build backend: maturin, with ranks over MPI if FMM_PYTHON_MPI=1."""

import os

from maturin import *  # noqa: F403

if os.environ.get("FMM_PYTHON_MPI", "0") not in ("", "0"):
    os.environ["MATURIN_PEP517_ARGS"] = f"{os.environ.get('MATURIN_PEP517_ARGS', '')} --features mpi".strip()
