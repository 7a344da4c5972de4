"""Posteriors that see any linear map of the input: only its row space matters."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers.generalized import generalized, row_space
from tests.ground_truth.brute_force import floats, paper_masks, softmax
from tests.ground_truth.cases import SHAPES, image_set

SIGMAS = scorelens.ddim_sigmas(10).tolist()


def brute_force_generalized(z, x, sigma, operators, temperature=1.0):
    """P = A^T (A A^T)^+ A for the matrix A of each output, one pair of images after the other."""
    out = np.empty_like(z)
    for q, a in enumerate(operators):
        p = (a.T @ np.linalg.pinv(a @ a.T) @ a).astype(z.dtype)
        for b, zb in enumerate(z):
            logits = np.array([-((p @ (zb - xi)) ** 2).sum() for xi in x]) / z.dtype.type(2 * sigma**2 * temperature)
            out[b, q] = softmax(logits) @ x[:, q]
    return out


def random_operators(d, seed=0):
    """Of every rank from 0 to a few."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1 + q % 5, d)) * (q % 7 > 0) for q in range(d)]


def noisy(images, sigma, count=5, dtype=torch.float32):
    eps = scorelens.seeded_noise(images.shape, range(count))
    return [(images[:count] + sigma * eps).to(dtype), (max(sigma, 0.5) * eps).to(dtype)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "smooth"])
@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_one_operator_for_each_output_equals_brute_force(kind, n, shape):
    """In float64 to 1e-9; in float32 at most twice the error of the plain formula, plus 1e-6."""
    images = image_set(kind, n, shape)
    given, x = random_operators(images.dim), floats(images.pixels)
    model = generalized(images, operators=[torch.from_numpy(a) for a in given])
    for sigma in SIGMAS[::3]:
        for z in noisy(images, sigma, count=2):
            flat = z.flatten(1).numpy()
            truth = brute_force_generalized(flat.astype(np.float64), x, sigma, given)
            plain = brute_force_generalized(flat, x.astype(np.float32), sigma, given)
            np.testing.assert_allclose(model(z.double(), sigma).flatten(1).numpy(), truth, rtol=0, atol=1e-9)
            error = np.abs(model(z, sigma).flatten(1).numpy() - truth).max()
            assert error <= 2 * np.abs(plain - truth).max() + 1e-6, f"sigma {sigma:.3g}"


@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_one_operator_for_all_equals_brute_force(n, shape):
    images = image_set("smooth", n, shape)
    x, a = floats(images.pixels), np.random.default_rng(0).standard_normal((4, images.dim))
    model = generalized(images, operators=torch.from_numpy(a), temperature=2.0)
    for sigma in SIGMAS[::3]:
        z = noisy(images, sigma, dtype=torch.float64)[0]
        truth = brute_force_generalized(z.flatten(1).numpy(), x, sigma, [a] * images.dim, temperature=2.0)
        np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), truth, rtol=0, atol=1e-9)


@pytest.mark.parametrize("snr", [0.3, 1.0, 10.0])
def test_by_default_it_sees_the_components_that_stand_out_of_the_noise(snr):
    """P = U_r U_r^T, of the components with lambda^2 >= snr sigma^2; where there is none, the output is the mean."""
    images, ranks = image_set("smooth", 60), set()
    x = floats(images.pixels)
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    for sigma in np.geomspace(0.005, 60, 12).tolist():
        a = vectors[:, values >= snr * sigma**2].T
        ranks.add(len(a))
        z = noisy(images, sigma, dtype=torch.float64)[0]
        truth = brute_force_generalized(z.flatten(1).numpy(), x, sigma, [a] * 20)
        out = generalized(images, snr=snr)(z, sigma)
        np.testing.assert_allclose(out.flatten(1).numpy(), truth, rtol=0, atol=1e-9)
    assert min(ranks) == 0 and max(ranks) == 20 and len(ranks) > 3


@pytest.mark.slow
def test_diagonal_operators_are_masks():
    """Any values on the diagonal: only their support matters, and the model is locality."""
    images = image_set("smooth", 60, (3, 3, 4))
    x = floats(images.pixels)

    def diagonals(sigma):
        sizes = np.random.default_rng(0).uniform(0.1, 3, (36, 36))
        return [torch.from_numpy(np.diag(row)) for row in paper_masks(x, sigma, 0.1) * sizes]

    model, local = generalized(images, operators=diagonals), scorelens.build_denoiser("locality", images, threshold=0.1)
    for sigma in SIGMAS:
        z = noisy(images, sigma, dtype=torch.float64)[0]
        torch.testing.assert_close(model(z, sigma), local(z, sigma), rtol=0, atol=1e-9)


def test_only_the_row_space_matters():
    """Rows scaled, mixed, repeated: the same answer."""
    images, sigma = image_set("smooth", 60), 0.6
    a = torch.randn(4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mix = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = noisy(images, sigma, dtype=torch.float64)[0]
    expected = generalized(images, operators=a)(z, sigma)
    for other in (a * torch.tensor([[1e3], [1.0], [1e-3], [7.0]]), mix @ a, torch.cat([a, 0 * a, a])):
        torch.testing.assert_close(generalized(images, operators=other)(z, sigma), expected, rtol=0, atol=1e-9)
    assert (generalized(images, operators=a[:3])(z, sigma) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("operators", [torch.eye(20), [torch.eye(20)] * 20, torch.eye(20).expand(20, 20, 20), None])
def test_an_operator_that_loses_nothing_is_optimal(operators):
    images = image_set("smooth", 60)
    whole = scorelens.build_denoiser("optimal", images)
    for sigma in SIGMAS[::3]:
        z = noisy(images, sigma, dtype=torch.float64)[0]
        torch.testing.assert_close(generalized(images, operators=operators, snr=0)(z, sigma), whole(z, sigma), rtol=0,
                                   atol=1e-9)


@pytest.mark.parametrize("operators", [torch.zeros(3, 20), torch.zeros(0, 20), [torch.zeros(1, 20)] * 20])
def test_an_operator_that_sees_nothing_leaves_the_mean(operators):
    images = image_set("smooth", 60)
    z = noisy(images, 0.1, dtype=torch.float64)[0]
    out = generalized(images, operators=operators)(z, 0.1)
    torch.testing.assert_close(out, images[:].double().mean(0).expand_as(out), rtol=0, atol=1e-7)


def test_row_spaces_have_orthonormal_bases():
    a = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 0.0], [4.0, 1.0, 0.0]])
    basis = row_space(a)
    torch.testing.assert_close(basis.T @ basis, torch.diag(torch.tensor([1.0, 1.0, 0.0])).double())
    assert len(basis) == 2


def test_some_outputs_alone_are_those_of_the_whole():
    images, sigma, pixels = image_set("smooth", 40), 0.4, torch.tensor([13, 2, 7])
    for operators in (None, [torch.from_numpy(a) for a in random_operators(20)]):
        model = generalized(images, operators=operators)
        z = noisy(images, sigma, dtype=torch.float64)[0]
        whole = model(z, sigma).flatten(1)
        torch.testing.assert_close(model.at(z, sigma, pixels), whole[:, pixels], rtol=0, atol=1e-12)


def test_chunks_and_batches_change_nothing():
    images = image_set("smooth", 53)
    whole, tight = generalized(images), generalized(images, memory=5000)
    for sigma in SIGMAS:
        z = noisy(images, sigma, count=7)[0]
        expected = whole(z, sigma)
        torch.testing.assert_close(tight(z, sigma), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.cat([whole(one, sigma) for one in z.split(1)]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("each", "sigma"), [(False, 0.15), (False, 0.6), (False, 5.0), (True, 0.6)])
def test_gradient_equals_finite_differences(each, sigma):
    images = image_set("smooth", 20, (1, 2, 3))
    model = generalized(images, operators=[torch.from_numpy(a) for a in random_operators(6)] if each else None)
    z = noisy(images, sigma, count=1, dtype=torch.float64)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model(z, sigma), z, eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 5, 3)])
def test_every_property(shape):
    scorelens.check_denoiser(generalized(image_set("smooth", 40, shape)))


@pytest.mark.parametrize(("options", "message"), [
    ({"snr": -1.0}, "snr must be at least 0"), ({"operators": torch.eye(19)}, r"a matrix \[r, 20\], got \[19, 19\]"),
    ({"operators": [torch.eye(20)] * 3}, "one for each of the 20 outputs, got 3"),
    ({"operators": [torch.ones(20)] * 20}, r"a matrix \[r, 20\], got \[20\]")])
def test_impossible_options_are_refused(options, message):
    images = image_set("smooth", 40)
    with pytest.raises(scorelens.ScorelensError, match=message):
        generalized(images, **options)(images[:1], 1.0)
