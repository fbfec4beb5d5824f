"""Points, strengths, and plain sums with NumPy."""

import numpy as np
import pytest

#: A program of several ranks, which a test starts.
collect_ignore = ["ranks_of_mpi.py"]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def differences(sources, targets):
    """Target minus source, (M, N, d), and the distances, infinite at zero."""
    d = targets[:, None] - sources[None]
    r = np.sqrt((d**2).sum(axis=2))
    return d, np.where(r == 0, np.inf, r)


def relative(a, b):
    """The relative l2 error."""
    return np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b)
