"""Derivatives in PyTorch, against finite differences and against autograd through sums over all pairs."""

import pytest

torch = pytest.importorskip("torch")

import fmm  # noqa: E402
import fmm.torch  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
KERNELS = [
    (fmm.Laplace(), 1),
    (fmm.Yukawa(kappa=2.0), 1),
    (fmm.Matern32(l=0.5), 1),
    (fmm.Stokes(mu=0.7), 3),
    (fmm.LaplaceDipole(), 3),
    (fmm.LaplaceMixed(), 4),
    (fmm.BiotSavart(), 3),
]


def points(n, seed, device):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, generator=rng, dtype=torch.float64).to(device).requires_grad_()


def strengths(n, c, device):
    rng = torch.Generator().manual_seed(9)
    q = torch.randn(*((n,) if c == 1 else (n, c)), generator=rng, dtype=torch.float64)
    return q.to(device).requires_grad_()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel, c", KERNELS, ids=lambda k: getattr(k, "name", ""))
def test_derivatives_are_those_of_finite_differences(kernel, c, device):
    x, y, q = points(7, 1, device), points(5, 2, device), strengths(7, c, device)

    def apart(x, q, y):
        return fmm.torch.evaluate(kernel, x, q, y, method="direct")

    assert torch.autograd.gradcheck(apart, (x, q, y), atol=1e-5, rtol=1e-5)
    assert torch.autograd.gradcheck(lambda x, q: fmm.torch.evaluate(kernel, x, q, method="direct"), (x, q), atol=1e-5)


def coulomb(x, q, y, own):
    r = (y[:, None] - x[None]).norm(dim=-1)
    if own:
        r = r + torch.diag(torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device))
    return (q / (4 * torch.pi * r)).sum(dim=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("own", [True, False])
def test_fast_sums_keep_the_tolerance_in_derivatives(own, device):
    x, q = points(3000, 1, device), strengths(3000, 1, device)
    y = x if own else points(2000, 2, device)
    wanted = (x, q) if own else (x, q, y)
    v = torch.randn(len(y), generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(device)
    found = fmm.torch.evaluate("laplace", x, q, None if own else y, tolerance=1e-6, method="equivalent")
    exact = coulomb(x, q, y, own)
    assert (found - exact).norm() < 1e-6 * exact.norm()
    pairs = zip(torch.autograd.grad(found @ v, wanted), torch.autograd.grad(exact @ v, wanted), strict=True)
    # The derivative with respect to sources that are targets is a sum of two sums, each with its error.
    assert all((a - b).norm() < 4e-6 * b.norm() for a, b in pairs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_is_linear(device):
    x, q = points(2000, 1, device).detach(), strengths(2000, 3, device)
    held = x if device == "cuda" else x.numpy()
    plan = fmm.Plan("stokes", held, tolerance=1e-7, backend=device)
    u = fmm.torch.apply(plan, q)
    v = torch.randn_like(u)
    (back,) = torch.autograd.grad((u * v).sum(), q)
    assert abs((back * q).sum() - (u * v).sum()) < 1e-6 * u.norm() * v.norm()
    assert fmm.torch.apply(plan, q.detach().float()).dtype == torch.float32


def test_a_second_derivative_raises():
    x, q = points(5, 1, "cpu"), strengths(5, 1, "cpu")
    (by_x,) = torch.autograd.grad(fmm.torch.evaluate("laplace", x, q).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        by_x.square().sum().backward()
    plan = fmm.Plan("laplace", x.detach().numpy())
    (by_q,) = torch.autograd.grad(fmm.torch.apply(plan, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        by_q.square().sum().backward()


def test_refusals():
    x, q = points(5, 1, "cpu"), strengths(5, 1, "cpu")
    with pytest.raises(NotImplementedError, match="complex"):
        fmm.torch.evaluate("helmholtz", x, q)
    with pytest.raises(TypeError, match="outputs"):
        fmm.torch.evaluate("laplace", x, q, outputs="gradient")
