"""
Potential of a star cluster
===========================

Stars of a Plummer sphere, and the map of their softened potential on a plane of other points.
"""

import matplotlib.pyplot as plt
import numpy as np

import fmm

rng = np.random.default_rng(3)
n = 20_000
radius = 1 / np.sqrt(rng.random(n) ** (-2 / 3) - 1)
direction = rng.standard_normal((n, 3))
stars = np.clip(radius, None, 20)[:, None] * direction / np.linalg.norm(direction, axis=1)[:, None]
masses = np.full(n, 1 / n)

side = np.linspace(-3, 3, 120)
x, y = np.meshgrid(side, side)
plane = np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=1)
kernel = fmm.Gravity(g=1.0, softening=0.02)
potential = fmm.evaluate(kernel, stars, masses, plane, tolerance=1e-5).potential

some = plane[::97]
exact = fmm.direct(kernel, stars, masses, some).potential
assert np.linalg.norm(potential[::97] - exact) < 1e-5 * np.linalg.norm(exact)
# A Plummer sphere has the potential of mass 1 at a distance sqrt(1 + r^2), up to the noise of n stars.
plummer = 1 / np.sqrt(1 + (plane**2).sum(axis=1))
assert np.linalg.norm(abs(potential) - plummer) < 0.05 * np.linalg.norm(plummer)

plt.contourf(x, y, potential.reshape(x.shape), 30)
plt.colorbar(label="potential")
plt.gca().set_aspect("equal")
