"""Posterior weights: against float64 brute force for every posterior denoiser, and by what they must add up to."""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

import scorelens
from scorelens import ImageSet, build_denoiser, fit_gaussian, load_images, seeded_noise
from scorelens.analysis.attribution import attribute, outputs_behind, whole_weights
from scorelens.posterior import top_weights
from scorelens.statistics import locality_masks, wiener_matrix

SIGMAS = (2.0, 0.4)  # broad posteriors, and sharp ones


@cache
def data(kind: str) -> ImageSet:
    if kind == "digits":
        return load_images("digits", limit=40)
    rng = np.random.default_rng(0)  # small colour images, smooth enough to have masks of their own
    values = rng.normal(size=(24, 3, 4, 1)) + rng.normal(size=(24, 1, 1, 5)) + 0.3 * rng.normal(size=(24, 3, 4, 5))
    return ImageSet((127 + 50 * values).clip(0, 255).astype(np.uint8), "colours")


def noisy(images: ImageSet, count: int = 2) -> Tensor:
    return (images[:count] + 0.5 * seeded_noise(images.shape, range(count))).double()


def pixels(images: ImageSet) -> Tensor:
    return images[:].double().flatten(1)


def softmax(distance: Tensor, sigma: float) -> Tensor:
    return torch.softmax(-distance / (2 * sigma**2), dim=-1)


def by_masks(z: Tensor, x: Tensor, masks: Tensor, sigma: float) -> Tensor:
    """[b, q, n] for masks or precisions [q, d]."""
    return softmax(torch.stack([(masks.double() @ (one - x).square().T) for one in z]), sigma)


def windows(shape, size, border="cut"):
    """[hw, d] masks of centred windows."""
    c, h, w = shape
    keep = torch.zeros(h, w, c, h, w)
    for r, q, a, b in product(range(h), range(w), range(h), range(w)):
        near = abs(a - r) <= size // 2 and abs(b - q) <= size // 2
        keep[r, q, :, a, b] = float(near)
    return keep.reshape(h * w, c * h * w)


def optimal(images, model, z, sigma):
    return softmax(torch.cdist(z, pixels(images)).square(), sigma)[:, None].expand(-1, images.dim, -1)


def masked(images, model, z, sigma):
    keep = model.masks(sigma).keep
    return by_masks(z, pixels(images), keep, sigma)[:, torch.arange(images.dim) % len(keep)]


def from_stats(images, model, z, sigma):
    keep = locality_masks(fit_gaussian(images), sigma, 0.02)
    return by_masks(z, pixels(images), keep, sigma)


def soft(images, model, z, sigma):
    w = wiener_matrix(fit_gaussian(images), sigma).abs()
    largest = w.amax(dim=1, keepdim=True)
    constant = largest < 1e-9 * largest.max()  # a pixel that never changes compares everything
    return by_masks(z, pixels(images), torch.where(constant, 1.0, w / largest.clamp(min=1e-30)), sigma)


def local(images, model, z, sigma):
    keep = windows(images.shape, 3)
    return by_masks(z, pixels(images), keep, sigma)[:, torch.arange(images.dim) % len(keep)]


def batches(images, model, z, sigma):
    keep, x = model.masks(sigma).keep, pixels(images)
    parts = [by_masks(z, some, keep, sigma) for some in x.split(7)]
    return torch.cat(parts, dim=2) / len(parts)


def translated(images, model, z, sigma):
    """Locality masks over all translations; an image's weight is the sum over its translations."""
    (_, h, w), keep = images.shape, model.masks(sigma).keep
    every = torch.cat([images[:].double().roll((a, b), (2, 3)).flatten(1) for a, b in product(range(h), range(w))])
    return by_masks(z, every, keep, sigma).unflatten(2, (h * w, len(images))).sum(dim=2)


def patches(x, size, positions, reach=None):
    """Circular patches of images [n, c, h, w] around positions: [n, positions, k]."""
    _, _, h, w = x.shape
    span = range(-(size // 2), size // 2 + 1)
    return torch.stack([torch.cat([x[:, :, (r + a) % h, (q + b) % w] for a, b in product(span, span)], dim=1)
                        for r, q in positions], dim=1)


def equivariant(images, model, z, sigma, inside=False):
    (c, h, w), x = images.shape, images[:].double()
    everywhere = list(product(range(h), range(w)))
    where = [(r, q) for r, q in everywhere if 0 < r < h - 1 and 0 < q < w - 1] if inside else everywhere
    query, bank = patches(z.view(-1, c, h, w), 3, everywhere), patches(x, 3, where)  # [b, hw, k], [n, p, k]
    distance = torch.cdist(query.flatten(0, 1), bank.flatten(0, 1)).square()
    weights = softmax(distance, sigma).view(len(z), h * w, len(x), -1).sum(dim=3)
    return weights.repeat(1, c, 1)


def inside(images, model, z, sigma):
    return equivariant(images, model, z, sigma, inside=True)


def boundary(images, model, z, sigma):
    """Interior pixels share all interior patches; an edge's its own line; a corner itself."""
    (c, h, w), x = images.shape, images[:].double()
    z, weights = z.view(-1, c, h, w), torch.empty(len(z), h * w, len(x), dtype=torch.float64)

    def rows(r, length):
        return range(1, length - 1) if 0 < r < length - 1 else range(r, r + 1)

    def cut(images, r, q):
        return images[:, :, max(0, r - 1):r + 2, max(0, q - 1):q + 2].flatten(1)

    for r, q in product(range(h), range(w)):
        bank = torch.stack([cut(x, a, b) for a, b in product(rows(r, h), rows(q, w))], dim=1)  # [n, p, k]
        distance = torch.cdist(cut(z, r, q), bank.flatten(0, 1)).square()
        weights[:, r * w + q] = softmax(distance, sigma).view(len(z), len(x), -1).sum(dim=2)
    return weights.repeat(1, c, 1)


def composite(images, model, z, sigma):
    """The mean over the 3 x 3 windows that contain a pixel."""
    (c, h, w), x = images.shape, pixels(images)
    corners = list(product(range(h - 2), range(w - 2)))
    keep = torch.zeros(len(corners), c, h, w)
    for k, (r, q) in enumerate(corners):
        keep[k, :, r:r + 3, q:q + 3] = 1
    keep = keep.flatten(1).double()
    return torch.einsum("qd, bqn -> bdn", keep / keep.sum(dim=0), by_masks(z, x, keep, sigma))


def flexible(images, model, z, sigma):
    keep = model.posterior(sigma).queries.keep.double()
    return torch.einsum("qd, bqn -> bdn", keep / keep.sum(dim=0), by_masks(z, pixels(images), keep, sigma))


def projected(images, model, z, sigma):
    stats, x = fit_gaussian(images), pixels(images)
    basis = stats.eigenvectors[:, stats.eigenvalues >= sigma**2].double()
    return softmax(torch.cdist(z @ basis, x @ basis).square(), sigma)[:, None].expand(-1, images.dim, -1)


def smoothed(images, model, z, sigma):
    eps = torch.randn((10, *images.shape), generator=torch.Generator().manual_seed(0)).double().flatten(1)
    return torch.stack([optimal(images, model, z + 0.1 * math.sqrt(1 + sigma**2) * e, sigma) for e in eps]).mean(dim=0)


def gaussians(images, model, z, sigma):
    stats, x, h = model.stats, pixels(images), model.bandwidth(sigma)
    mu, cov = stats.mean.double(), stats.covariance().double()
    inverse = torch.linalg.inv(h**2 * cov + sigma**2 * torch.eye(len(mu)))
    difference = z[:, None] - mu - math.sqrt(1 - h**2) * (x - mu)
    distance = torch.einsum("bnd, de, bne -> bn", difference, inverse, difference)
    return torch.softmax(-distance / 2, dim=1)[:, None].expand(-1, images.dim, -1)


def local_gaussians(images, model, z, sigma):
    stats, x, h = model.stats, pixels(images), model.bandwidth(sigma)
    mu, cov = stats.mean.double(), stats.covariance().double()
    difference, weights = z[:, None] - mu - math.sqrt(1 - h**2) * (x - mu), []
    for row in model.masks(sigma):
        (seen,) = row.nonzero(as_tuple=True)
        inverse = torch.linalg.inv(h**2 * cov[seen][:, seen] + sigma**2 * torch.eye(len(seen)))
        some = difference[:, :, seen]
        weights.append(torch.softmax(-torch.einsum("bnd, de, bne -> bn", some, inverse, some) / 2, dim=1))
    return torch.stack(weights, dim=1)


def mixture(images, model, z, sigma):
    """Of the masks alone: the Wiener filter has no weights."""
    local = model.weights(sigma)[:-1]
    pairs = zip(local / local.sum(), model.scales, strict=True)
    return sum(weight * by_masks(z, pixels(images), scale.masks(sigma).keep, sigma) for weight, scale in pairs)


def neighbours(images, model, z, sigma):
    """Only the five nearest images have weight."""
    distance = torch.cdist(z, pixels(images)).square()
    far = distance > distance.kthvalue(5, dim=1, keepdim=True).values
    return softmax(distance.masked_fill(far, math.inf), sigma)[:, None].expand(-1, images.dim, -1)


def nearest(images, model, z, sigma):
    index = torch.cdist(z, pixels(images)).argmin(dim=1)
    return torch.nn.functional.one_hot(index, len(images)).double()[:, None].expand(-1, images.dim, -1)


CASES = {
    "optimal": ("optimal", {}, optimal), "nearest": ("nearest", {}, nearest),
    "optimal, neighbours": ("optimal", {"neighbours": 5}, neighbours), "smoothed": ("smoothed", {}, smoothed),
    "locality": ("locality", {}, from_stats), "soft-locality": ("soft-locality", {}, soft),
    "batch-mean": ("locality", {"softmax": "batch-mean", "softmax_batch": 7}, batches),
    "locality-equivariant": ("locality-equivariant", {}, translated), "multiscale": ("multiscale", {}, mixture),
    "measured": ("measured", {"samples": 2}, masked), "ls": ("ls", {"patch_size": 3}, local),
    "els": ("els", {"patch_size": 3}, equivariant), "els, inside": ("els", {"patch_size": 3, "bank": "inside"}, inside),
    "bbels": ("bbels", {"patch_size": 3}, boundary), "pspc-square": ("pspc-square", {"patch_size": 3}, composite),
    "pspc-flex": ("pspc-flex", {"samples": 2}, flexible), "generalized": ("generalized", {}, projected),
    "kernel": ("kernel", {"bandwidth": 0.6}, gaussians),
    "kernel-locality": ("kernel-locality", {"bandwidth": 0.4}, local_gaussians),
}


@cache
def model_of(case: str, kind: str):
    name, options, _ = CASES[case]
    return build_denoiser(name, data(kind), **options)


def dense(model, z, sigma) -> Tensor:
    """All weights [b, d, n], from the top of all rows; an image's weight is the sum over its translations."""
    (c, h, w), size = z.shape[1:], len(model.images)
    weights = torch.zeros(len(z), c * h * w, size, dtype=torch.float64)
    for term in model.terms(z, sigma):
        top, target = top_weights(term, 10**9), term.writers.target
        part = torch.zeros(len(term.noisy), len(target), size, dtype=torch.float64)
        part.scatter_add_(2, top.image[:, target], term.share * top.weight[:, target].double())
        for k, row in enumerate(term.noisy):
            weights[row, term.writers.outputs] += part[k]
    return weights


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("kind", ["digits", "colours"])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_equation(case, kind, sigma):
    """w^q = softmax of the method's logits, in float64, for every output; and they sum to 1."""
    images, z = data(kind), noisy(data(kind))
    model = model_of(case, kind)
    weights = dense(model, z, sigma)
    expected = CASES[case][2](images, model, z.flatten(1), sigma)
    torch.testing.assert_close(weights, expected.double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(weights.shape[:2], dtype=torch.float64))
    whole = whole_weights(model, z, sigma, torch.full((1, images.dim), 1 / images.dim))
    torch.testing.assert_close(whole[:, 0], expected.double().mean(dim=1), atol=1e-6, rtol=0)


def test_golden_has_the_weights_of_locality_over_its_images():
    images, z, sigma = data("digits"), noisy(data("digits")), 0.4
    model = build_denoiser("golden", images)
    weights, masks = dense(model, z, sigma), locality_masks(fit_gaussian(images), sigma, 0.03, "published")
    for k in range(len(z)):
        (chosen,) = weights[k].sum(dim=0).nonzero(as_tuple=True)
        assert 1 <= len(chosen) <= 4
        expected = by_masks(z[k:k + 1].flatten(1), pixels(images)[chosen], masks, sigma)[0]
        torch.testing.assert_close(weights[k][:, chosen], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("kernel")])
def test_the_weighted_mean_of_the_pixels_named_is_the_prediction(case):
    """Indices and offsets: x0_hat_q = sum_k weight_k x[index_k, q + offset_k], for all rows, translations included."""
    images, z = data("colours"), noisy(data("colours"))
    (c, h, w), model = images.shape, model_of(case, "colours")
    found = outputs_behind(model, z, 0.7, len(images) * h * w)
    row = (torch.arange(h)[:, None] + found.offset[..., 0]) % h
    column = (torch.arange(w) + found.offset[..., 1]) % w
    values = images[:].double()[found.index, torch.arange(c)[:, None, None], row, column]
    mean = (found.weight * values).sum(dim=1)
    if case == "multiscale":
        linear = model.weights(0.7)[-1]
        assert 0 < linear < 1
        mean = (1 - linear) * mean + linear * model.linear(z, 0.7)
    torch.testing.assert_close(mean, model(z, 0.7), atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_a_pixel_has_the_mean_weights_of_its_channels(case):
    images, z = data("colours"), noisy(data("colours"))
    (c, h, w), model = images.shape, model_of(case, "colours")
    behind = attribute(model, z, 0.7, pixels=[(1, 2)], top=len(images), outputs=False).behind
    found = torch.zeros(len(z), len(images), dtype=torch.float64).scatter_(1, behind.index[:, 0], behind.weight[:, 0])
    expected = dense(model, z, 0.7)[:, torch.arange(c) * h * w + w + 2].mean(dim=1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_top_is_the_top_of_all(case):
    """The first k weights and the effective number do not need the others to be kept."""
    z, model = noisy(data("digits")), model_of(case, "digits")
    some, every = (outputs_behind(model, z, 0.7, count) for count in (3, 40 * 64))
    torch.testing.assert_close(some.weight, every.weight[:, :3])
    torch.testing.assert_close(some.effective, 1 / every.weight.square().sum(dim=1))


@pytest.mark.parametrize("case", ["optimal", "locality", "batch-mean", "multiscale", "pspc-square",
                                  pytest.param("els, inside", marks=pytest.mark.slow)])
def test_chunks_batches_and_order_change_nothing(case):
    images, z = data("digits"), noisy(data("digits"), 3)
    name, options, _ = CASES[case]
    order = np.random.default_rng(1).permutation(len(images)) if case != "batch-mean" else np.arange(len(images))
    model = build_denoiser(name, images.subset(order), **options)
    small = build_denoiser(name, images, **options, memory=2**14)
    plain, target = dense(model_of(case, "digits"), z, 0.7), torch.full((1, images.dim), 1 / images.dim)
    if case != "multiscale":  # its weights are fitted to held-out images, which the order decides
        torch.testing.assert_close(dense(model, z, 0.7)[:, :, np.argsort(order)], plain, atol=1e-9, rtol=0)
    torch.testing.assert_close(dense(small, z, 0.7), plain, atol=1e-9, rtol=0)
    alone = torch.cat([dense(model_of(case, "digits"), one, 0.7) for one in z.split(1)])
    torch.testing.assert_close(alone, plain, atol=1e-9, rtol=0)
    torch.testing.assert_close(whole_weights(small, z, 0.7, target)[:, 0], plain.mean(dim=1), atol=1e-9, rtol=0)


def test_float32_and_the_compiled_kernel():
    """In float32 the weights are those of float64, within the rounding of distances of about D terms."""
    z = noisy(data("digits"))
    for case in ("optimal", "locality", "ls", "els", "multiscale"):
        model = model_of(case, "digits")
        torch.testing.assert_close(dense(model, z.float(), 0.4), dense(model, z, 0.4), atol=1e-4, rtol=0)


def test_indices_refer_to_the_callers_images():
    """Also where a denoiser averages a class, a random draw, or mirrored copies of them."""
    images, sigma = load_images("digits", limit=200), 0.3
    rows = np.arange(5, 190, 3)
    own = images.subset(rows)  # the caller's set has its own indices
    for name, options in (("optimal", {"classes": [3, 7]}), ("ls", {"images_limit": 30, "patch_size": 3}),
                          ("els", {"images_limit": 30, "patch_size": 3}), ("optimal", {"neighbours": 4}),
                          ("pspc-square", {"flips": True, "patch_size": 8}), ("golden", {}),
                          ("optimal", {"labels": [3, 7]})):
        model = build_denoiser(name, own, **options)
        z = own[[int(np.flatnonzero(own.labels == label)[0]) for label in (3, 7)]]
        found = outputs_behind(model, z, sigma, 1)
        pixel = own[found.index[:, 0].flatten()].view(2, 64, 64)  # the images named, for each output
        top = found.weight[:, 0].flatten(1) > 0.999
        if name == "optimal":
            assert top.all()
            picture = pixel[:, torch.arange(64), torch.arange(64)].view(z.shape)
            torch.testing.assert_close(picture, model(z, sigma), atol=2e-3, rtol=0)
        assert int(found.index.max()) < len(own) and int(found.index.min()) >= 0
        if name == "pspc-square":
            flipped = own[found.index[:, 0, 0, 0, 0]].flip(3)
            plain = own[found.index[:, 0, 0, 0, 0]]
            x0_hat = model(z, sigma)
            error = torch.minimum((x0_hat - plain).abs().amax(dim=(1, 2, 3)), (x0_hat - flipped).abs().amax((1, 2, 3)))
            assert (error < 2e-3).all()


def test_a_pixel_costs_only_its_own_mask():
    model, z = model_of("locality", "digits"), noisy(data("digits"))
    (term,) = model.terms(z, 0.7)
    some = term.at(torch.tensor([9, 33]))
    assert len(some.posterior.queries) == 2
    torch.testing.assert_close(top_weights(some, 40).weight, top_weights(term, 40).weight[:, [9, 33]])
    assert term.at(torch.tensor([1000])) is None


def test_float64_weights_of_the_kernel_part_are_independent_of_its_linear_part():
    """At h = 0 the kernel denoiser is the optimal one, weights included."""
    images, z = data("digits"), noisy(data("digits"))
    kernel = build_denoiser("kernel", images, bandwidth=0.0)
    torch.testing.assert_close(dense(kernel, z, 0.7), optimal(images, kernel, z.flatten(1), 0.7), atol=1e-6, rtol=0)
    assert scorelens.DENOISERS.keys() - {CASES[case][0] for case in CASES} == {"wiener", "local-wiener", "golden"}
