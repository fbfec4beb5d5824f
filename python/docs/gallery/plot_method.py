"""
How the sums are made
=====================

A sum over all pairs of n points takes n² steps. The fast multipole method takes a number of steps proportional to n: it
sums pairs of close points one by one, and pairs of distant groups of points together. The pictures are of points in the
plane, where a tree is easy to see; in space everything is the same.
"""

import matplotlib.pyplot as plt
import numpy as np

import fmm

rng = np.random.default_rng(5)
n = 3000
points = np.concatenate([rng.normal(0, 0.2, (n // 3, 2)), rng.random((2 * n // 3, 2)) * 2 - 1])
charges = rng.standard_normal(n)

# %%
# **The tree.** The rectangle around the points is cut into four, each part again, and so on, until a part holds few
# points. In the plane each cut leaves equally many points on both sides; in space the cuts halve the sides of a cube.
# The parts at the end are the leaves. Where points are dense, leaves are small. The picture shows the rectangle around
# the points of each leaf.
plan = fmm.Plan(fmm.Laplace2D(), points, tolerance=1e-6, method="laurent")
plan.plot()

# %%
# **Near and far.** For each leaf the plan has a list of the leaves nearby. Sums over those are direct, pair by pair.
# :meth:`fmm.Plan.near_blocks` gives these pairs, and ``near`` shows them for one target.
plan.plot(near=0)

near = sum(len(sources) for targets, sources in plan.near_blocks() if 0 in targets)
assert near < n / 4
print(f"target 0: {near} of {n} sources are summed directly, the others through expansions")

# %%
# **Expansions.** Seen from afar, a group of sources is described by a few numbers, its multipole expansion. The method
# goes up the tree, from the expansions of small boxes to those of large ones. Each pair of boxes that are far from each
# other, for their size, turns the multipole expansion of one into a local expansion in the other. Then the method goes
# down the tree, and the local expansions give the values at the targets. The length of the expansions is the *order*.
# The error falls by the same factor from order to order:
exact = fmm.direct(fmm.Laplace2D(), points, charges).potential
orders = [2, 4, 6, 8, 10, 12, 14, 16]
errors = []
for order in orders:
    u = fmm.evaluate(fmm.Laplace2D(), points, charges, order=order, method="laurent").potential
    errors.append(np.linalg.norm(u - exact) / np.linalg.norm(exact))
assert errors[0] > 30 * errors[2] > 900 * errors[4] and errors[-1] < 1e-7

plt.figure()
plt.semilogy(orders, errors, "o-")
plt.xlabel("order")
plt.ylabel("relative l2 error")

# %%
# Nobody has to know the order. A plan measures the error on the leaves of its own points, and takes the smallest order
# that keeps the tolerance:
measured = plan.describe()
print(f"order {measured['order']} keeps the tolerance {measured['tolerance']:g}")
assert plan.verify(charges)["potential"].rel_l2 < 1e-6

# %%
# **The cost.** With more points there are more leaves, not larger ones. So direct pairs per point stay the same, and so
# do pairs of boxes per point:
pairs = []
for count in (10_000, 40_000, 160_000):
    described = fmm.Plan(fmm.Laplace2D(), rng.random((count, 2)), order=10, method="laurent").describe()
    pairs.append(described["near_pairs"] / count)
    print(f"{count:7} points: {described['leaves']:6} leaves, {pairs[-1]:.0f} direct pairs for each point")
assert max(pairs) < 2 * min(pairs)
