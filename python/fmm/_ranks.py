"""Ranks of mpi4py."""

from __future__ import annotations

import atexit
from typing import Any

from . import _core

#: The key under which a communicator holds its ranks; made with the first of them.
_key: int | None = None


def world(comm: Any) -> _core.World:
    """The ranks of a communicator of mpi4py, made once for each. All of them call this together."""
    global _key
    if not (hasattr(comm, "py2f") and hasattr(comm, "Get_attr")):
        raise TypeError(f"comm is {type(comm).__name__}, expected a communicator of mpi4py")
    if _key is None:
        _key = type(comm).Create_keyval()
    held = comm.Get_attr(_key)
    if held is None:
        held = _core.World(comm.py2f())
        comm.Set_attr(_key, held)
        # While MPI still runs, others are told that this rank ends.
        atexit.register(_leave, comm)
    ranks: _core.World = held
    return ranks


def _leave(comm: Any) -> None:
    if comm and _key is not None:
        comm.Delete_attr(_key)
