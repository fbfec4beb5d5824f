"""
A Gaussian process on 100 000 points
====================================

Regression with the covariance of Matérn 3/2: the weights w solve (K + s² I) w = y. Products with K are sums, so
conjugate gradients need no matrix. A few hundred of the points make a preconditioner (Nyström).
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg
from scipy.spatial.distance import cdist

import fmm

rng = np.random.default_rng(0)
n, length, noise = 100_000, 0.3, 0.3


def truth(x):
    return np.sin(6 * x[:, 0]) * np.cos(5 * x[:, 1]) + x[:, 2]


x = rng.random((n, 3))
y = truth(x) + noise * rng.standard_normal(n)


def matern(a, b):
    r = cdist(a, b) * 3**0.5 / length
    return (1 + r) * np.exp(-r)


start = time.perf_counter()
plan = fmm.Plan(fmm.Matern32(l=length), x, tolerance=1e-4)
covariance = plan.as_linear_operator()
noisy = LinearOperator((n, n), matvec=lambda w: covariance @ w + noise**2 * w)

# K is about C G⁻¹ Cᵀ with the columns C of some points; Woodbury's formula inverts that plus s² I.
few = x[rng.choice(n, 600, replace=False)]
columns, small = matern(x, few), matern(few, few)
inner = cho_factor(noise**2 * small + columns.T @ columns + 1e-6 * np.eye(len(few)))
preconditioner = LinearOperator((n, n), matvec=lambda w: (w - columns @ cho_solve(inner, columns.T @ w)) / noise**2)

products = []
weights, failed = cg(noisy, y, rtol=1e-2, M=preconditioner, maxiter=60, callback=lambda _: products.append(1))
seconds = time.perf_counter() - start
assert failed == 0
residual = np.linalg.norm(noisy @ weights - y) / np.linalg.norm(y)
assert residual < 2e-2
print(f"{n} points, {len(products)} products, {seconds:.3g} s in all, {plan!r}")

# %%
# The mean of the process at other points. It has an error far below the noise of single data.
new = np.stack([np.linspace(0.05, 0.95, 200), np.full(200, 0.3), np.full(200, 0.6)], axis=1)
mean = fmm.evaluate(fmm.Matern32(l=length), x, weights, new, tolerance=1e-4).potential
exact = np.array([matern(point[None], x)[0] @ weights for point in new[::20]])
assert np.linalg.norm(mean[::20] - exact) < 1e-3 * np.linalg.norm(exact)
assert np.sqrt(np.mean((mean - truth(new)) ** 2)) < 0.3 * noise
plt.plot(new[:, 0], truth(new), "k--", label="truth")
plt.plot(new[:, 0], mean, label="mean of the process")
plt.xlabel("x")
plt.legend()
