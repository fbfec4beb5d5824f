"""
Fit charges and positions with PyTorch
======================================

Four hidden charges make a potential on a sphere around them. Gradients through :func:`fmm.torch.evaluate` find charges
and positions from the potential alone.
"""

import matplotlib.pyplot as plt
import torch

import fmm.torch

torch.manual_seed(0)
hidden = 0.25 + 0.5 * torch.rand(4, 3, dtype=torch.float64)
charges = 0.5 + torch.rand(4, dtype=torch.float64)
directions = torch.nn.functional.normalize(torch.randn(1000, 3, dtype=torch.float64), dim=1)
sensors = 0.5 + 0.6 * directions
measured = fmm.torch.evaluate("laplace", hidden, charges, sensors, tolerance=1e-8)

positions = (hidden + 0.05 * torch.randn_like(hidden)).requires_grad_()
strengths = torch.ones(4, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.LBFGS([positions, strengths], max_iter=60, line_search_fn="strong_wolfe",
                              tolerance_grad=1e-12, tolerance_change=1e-14)
losses = []


def loss():
    optimizer.zero_grad()
    found = fmm.torch.evaluate("laplace", positions, strengths, sensors, tolerance=1e-8)
    value = ((found - measured) ** 2).sum() / (measured**2).sum()
    value.backward()
    losses.append(value.item())
    return value


optimizer.step(loss)
assert losses[-1] < 1e-3 * losses[0]
error = (positions.detach() - hidden).norm() / hidden.norm()
print(f"loss {losses[0]:.2g} -> {losses[-1]:.2g} in {len(losses)} evaluations; positions err by {error:.2g}")
plt.semilogy(losses)
plt.xlabel("evaluation")
plt.ylabel("relative square of the misfit")
