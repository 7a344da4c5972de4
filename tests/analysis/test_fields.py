"""Numbers of fields whose answers are known."""

import math

import numpy as np
import pytest
import torch

import scorelens
from scorelens import sensitivity
from scorelens.analysis.fields import anisotropy, cosine, equivariance, radius, wiener_fields
from scorelens.analysis.marks import MARK_VISIBLE, mark_visibility
from scorelens.data.edits import mark_mask
from scorelens.jacobian import mean_fields
from scorelens.sampling import trajectory
from tests.ground_truth.cases import image_set


def field_of(places, shape=(2, 9, 9), value=1.0):
    field = torch.zeros(shape)
    for row, column in places:
        field[:, row, column] = value
    return field


def test_closed_form_wiener_fields_are_those_of_the_denoiser():
    images = image_set("random", 12, (3, 5, 4))
    model, pixels = scorelens.build_denoiser("wiener", images), [(0, 0), (2, 3)]
    z = scorelens.seeded_noise((3, 5, 4), range(1), dtype=torch.float64)
    for channel in (None, 1):
        found = wiener_fields(model.stats, images.shape, [0.5, 3.0], pixels, channel)
        for k, sigma in enumerate([0.5, 3.0]):
            expected = sensitivity(model, z, sigma, pixels, channel=channel)[:, 0]
            torch.testing.assert_close(found.values[k], expected, rtol=1e-6, atol=1e-9)


def test_cosine():
    a = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert cosine(a, 3 * a) == pytest.approx(1) and cosine(a, -a) == pytest.approx(-1)
    assert cosine(field_of([(0, 0)]), field_of([(0, 1)])) == 0 and cosine(a, torch.zeros_like(a)) == 0


def test_radius_is_the_rms_distance():
    assert radius(field_of([(4, 4)]), (4, 4)) == 0
    assert radius(field_of([(4, 1), (4, 7)]), (4, 4)) == pytest.approx(3)
    assert radius(field_of([(4, 1), (4, 4)], value=-2.0), (4, 4)) == pytest.approx(math.sqrt(9 / 2))
    assert radius(torch.zeros(1, 9, 9), (4, 4)) == 0


def test_anisotropy_of_a_line_and_of_a_cross():
    assert anisotropy(field_of([(4, k) for k in range(9)]), (4, 4)) == pytest.approx(1)
    assert anisotropy(field_of([(4, 2), (4, 6), (2, 4), (6, 4)]), (4, 4)) == pytest.approx(0)
    assert anisotropy(field_of([(4, 2), (4, 6), (3, 4), (5, 4)]), (4, 4)) == pytest.approx(0.5)


def test_equivariance_of_a_convolution_is_one():
    kernel = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.pad(kernel, (9, 9, 9, 9))
    pixels = [(4, 4), (1, 2), (7, 8)]
    fields = torch.stack([wide[13 - r:22 - r, 13 - c:22 - c][None] for r, c in pixels])
    assert equivariance(fields, pixels) == pytest.approx(1)
    assert equivariance(fields.flip(-1), pixels) < 0.9
    assert equivariance(fields[:1], pixels[:1]) == 1


def test_mean_fields_along_a_trajectory():
    images = image_set("random", 12, (1, 4, 4))
    model, noise = scorelens.build_denoiser("optimal", images), scorelens.seeded_noise((1, 4, 4), range(3))
    steps = list(trajectory(model, noise, [2.0, 0.5]))
    found = mean_fields(model, steps, [(1, 1), (3, 0)])
    assert found.values.shape == (2, 2, 1, 4, 4) and found.sigmas == [2.0, 0.5] and found.samples == 3
    for k, step in enumerate(steps):
        each = [sensitivity(model, z[None], step.sigma, (3, 0))[0] for z in step.z]
        torch.testing.assert_close(found.values[k, 1], torch.stack(each).mean(dim=0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_mark_is_visible_where_it_is_and_nowhere_else():
    """On edited dead leaves the Wiener filter's own fields lie above the threshold, on plain ones below it."""
    mask = mark_mask("W", (24, 24))
    places = np.argwhere(mask)[:: mask.sum() // 6]
    pixels = [(int(r), int(c)) for r, c in places]

    def visibility(gamma=None):
        images = scorelens.load_images("leaves", limit=1500, resolution=24)
        images = images if gamma is None else scorelens.add_mark(images, "W", gamma)
        fields = wiener_fields(scorelens.fit_gaussian(images, cache=False), images.shape, [1.0], pixels, channel=0)
        return np.mean([mark_visibility(f[0], p, mask) for f, p in zip(fields.values[0], pixels, strict=True)])

    assert abs(visibility()) < MARK_VISIBLE / 2
    assert visibility(0.25) > MARK_VISIBLE
    assert visibility(0.5) > 2 * MARK_VISIBLE


def test_visibility_ignores_what_is_near():
    mask = np.zeros((20, 20), bool)
    mask[2, 2:18] = True
    field = torch.zeros(20, 20)
    field[0:5, 0:5] = 5.0  # a large bump around the pixel itself
    assert abs(mark_visibility(field, (2, 2), mask)) < 1e-9
    field[2, 6:18] = 1.0
    assert mark_visibility(field, (2, 2), mask) == pytest.approx(1)
