"""d x0_hat / dz: against finite differences, against closed forms, and in memory that does not grow with N."""

import pytest
import torch

import scorelens
from tests.ground_truth.brute_force import floats
from tests.ground_truth.cases import image_set

OPTIONS = {"optimal": {}, "wiener": {}, "smoothed": {"draws": 2}, "locality": {"threshold": 0.1}}


def variants():
    yield from OPTIONS.items()
    yield "locality", {"softmax": "batch-mean", "softmax_batch": 7}
    yield "locality", {"temperature": 2.0, "memory": 4000}
    yield from (("locality", {"threshold": 0.1, "plan": plan}) for plan in ("dense", "sparse", "differences"))
    yield "optimal", {"neighbours": 6}
    yield "optimal", {"memory": 2000, "temperature": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), variants())
@pytest.mark.parametrize("sigma", [0.15, 0.6, 5.0])
def test_gradient_equals_finite_differences(name, options, sigma):
    images = image_set("smooth", 20, (1, 3, 4))
    model = scorelens.build_denoiser(name, images, **options)
    z = (images[:2] + sigma * scorelens.seeded_noise(images.shape, range(2))).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model(z, sigma), z, eps=1e-6, atol=1e-6, rtol=1e-4)


def test_gradient_of_optimal_is_the_posterior_covariance():
    """d x0_hat_q / d z_k = Cov_w(x_q, x_k) / sigma^2."""
    images, sigma = image_set("smooth", 30, (1, 3, 4)), 0.8
    x = torch.from_numpy(floats(images.pixels))
    z = x[:1] + 0.1
    weights = torch.softmax(-(z - x).square().sum(1) / (2 * sigma**2), 0)
    centred = x - weights @ x
    covariance = centred.T @ (weights[:, None] * centred)
    model = scorelens.build_denoiser("optimal", images)
    jacobian = torch.autograd.functional.jacobian(lambda v: model(v.view(1, 1, 3, 4), sigma).flatten(), z.flatten())
    torch.testing.assert_close(jacobian, covariance / sigma**2, rtol=1e-9, atol=1e-12)


def test_gradient_of_wiener_is_its_matrix():
    images, sigma = image_set("smooth", 30, (1, 3, 4)), 0.8
    model = scorelens.build_denoiser("wiener", images)
    jacobian = torch.autograd.functional.jacobian(lambda v: model(v.view(1, 1, 3, 4), sigma).flatten(),
                                                  torch.zeros(12, dtype=torch.float64))
    s = torch.cov(torch.from_numpy(floats(images.pixels)).T)
    gain = torch.linalg.solve(s + sigma**2 * torch.eye(12, dtype=torch.float64), s)
    torch.testing.assert_close(jacobian, gain.T, rtol=0, atol=1e-9)


def test_nearest_has_zero_gradient():
    images = image_set("random", 20)
    z = images[:2].requires_grad_()
    (gradient,) = torch.autograd.grad(scorelens.build_denoiser("nearest", images)(z, 0.1).sum(), z)
    torch.testing.assert_close(gradient, torch.zeros_like(z))


@pytest.mark.parametrize("name", ["optimal", "locality"])
def test_what_is_kept_for_the_backward_pass_does_not_grow_with_the_data(name):
    """Tensors saved by autograd: the same number of elements for 30 images and for 300."""
    def saved_elements(n):
        images, saved = image_set("smooth", n, (1, 3, 4)), []
        z = images[:2].requires_grad_()
        model = scorelens.build_denoiser(name, images)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
            out = model(z, 0.5)
        node = out.grad_fn
        while not hasattr(node, "states"):
            node = node.next_functions[0][0]
        held = sum(t.numel() for state in node.states for t in state)
        return sum(saved) + held

    assert saved_elements(30) == saved_elements(300)
