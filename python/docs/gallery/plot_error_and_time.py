"""
Error against time
==================

The error follows the tolerance, at every output. Direct sums are the reference, at some of the targets.
"""

import matplotlib.pyplot as plt
import numpy as np

import fmm

rng = np.random.default_rng(0)
points, charges = rng.random((20_000, 3)), rng.standard_normal(20_000)
chosen = rng.choice(len(points), 500, replace=False)
outputs = ("potential", "gradient")
exact = fmm.Plan("laplace", points, subset=chosen, outputs=outputs, method="direct").apply(charges)

errors, seconds = {name: [] for name in outputs}, []
tolerances = [1e-2, 1e-4, 1e-6, 1e-8]
for tolerance in tolerances:
    plan = fmm.Plan("laplace", points, tolerance=tolerance, outputs=outputs)
    result = plan.apply(charges)
    seconds.append(result.seconds)
    for name, array in result.items():
        difference = array[chosen] - getattr(exact, name)
        errors[name].append(np.linalg.norm(difference) / np.linalg.norm(getattr(exact, name)))
        assert errors[name][-1] < tolerance

for name in outputs:
    plt.loglog(tolerances, errors[name], "o-", label=f"error of the {name}")
plt.loglog(tolerances, tolerances, "k--", label="tolerance")
plt.xlabel("tolerance")
plt.ylabel("relative l2 error")
plt.legend()

# %%
# Seconds of one evaluation, after the plan is made:
for tolerance, time in zip(tolerances, seconds):
    print(f"{tolerance:g}: {time:.3g} s")
