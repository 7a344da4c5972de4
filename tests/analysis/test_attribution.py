"""attribute and without: found images, closed forms of removal, networks, errors."""

import json
from functools import cache

import numpy as np
import pytest
import torch

import scorelens
from scorelens import ImageSet, ScorelensError, attribute, build_denoiser, load_images, seeded_noise, without
from scorelens.analysis.attribution import outputs_behind

KEPT = {
    "optimal": {}, "optimal, neighbours": {"neighbours": 5}, "nearest": {}, "smoothed": {"draws": 3}, "wiener": {},
    "locality": {}, "locality, auto": {"threshold": "auto"}, "soft-locality": {}, "locality-equivariant": {},
    "multiscale": {}, "kernel": {}, "kernel-locality": {}, "generalized": {}, "measured": {"samples": 2},
    "ls": {"patch_size": 3}, "els": {"patch_size": 3}, "bbels": {"patch_size": 3}, "pspc-square": {"flips": True},
    "pspc-flex": {"samples": 2}, "golden": {}, "local-wiener": {"neighbours": 20},
    "optimal, labels": {"labels": [1, 3]},
}
WITH_STATS = {"locality", "soft-locality", "locality-equivariant", "kernel", "kernel-locality", "generalized", "golden",
              "local-wiener", "wiener"}
PLAIN = {"optimal", "optimal, neighbours", "nearest", "smoothed", "ls", "els", "bbels", "pspc-square",
         "optimal, labels"}


@cache
def digits() -> ImageSet:
    return load_images("digits", limit=60)


def noisy(count: int = 2):
    return digits()[:count] + 0.5 * seeded_noise(digits().shape, range(count))


def build(case: str, images: ImageSet, **more):
    return build_denoiser(case.partition(",")[0], images, **KEPT[case], **more)


@pytest.mark.parametrize("case", sorted(PLAIN | WITH_STATS))
def test_without_is_the_denoiser_of_the_smaller_set(case):
    """Statistics kept: built from the remaining images with the moments of all."""
    images, z = digits(), noisy()
    stats = {"stats": scorelens.fit_gaussian(images)} if case in WITH_STATS else {}
    if case in ("kernel", "kernel-locality"):
        stats["bandwidth"] = 0.5
    smaller = without(build(case, images, **stats), [0, 7, 30])
    direct = build(case, images.without([0, 7, 30]), **stats)
    assert len(smaller.images) == (57 if "pspc" not in case else 114)
    for sigma in (2.0, 0.4):
        torch.testing.assert_close(smaller(z, sigma), direct(z, sigma), atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", sorted(KEPT))
def test_refitted_equals_a_denoiser_built_from_the_smaller_set(case):
    images, z = digits(), noisy()
    smaller, direct = without(build(case, images), [0, 7], "refitted"), build(case, images.without([0, 7]))
    torch.testing.assert_close(smaller(z, 0.6), direct(z, 0.6), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("case", "fitted"), [
    ("multiscale", lambda model, sigma: [model.weights(sigma), model.stacked(sigma).queries.keep]),
    ("locality, auto", lambda model, sigma: [torch.tensor(model.values(sigma)["threshold"]),
                                             model.at_level(sigma).masks(sigma).keep]),
    ("measured", lambda model, sigma: [model.masks(sigma).keep]),
    ("pspc-flex", lambda model, sigma: [model.posterior(sigma).queries.keep]),
    ("kernel", lambda model, sigma: [torch.tensor(model.values(sigma)["bandwidth"]), model.at_level(sigma).stats.mean]),
])
def test_kept_keeps_what_was_fitted(case, fitted):
    model = build(case, digits())
    smaller = without(model, range(20))
    for a, b in zip(fitted(smaller, 0.5), fitted(model, 0.5), strict=True):
        assert torch.equal(a, b)
    assert len(smaller.images) == 40
    assert not torch.allclose(smaller(noisy(), 0.5), model(noisy(), 0.5), atol=1e-3)


def test_removal_renormalizes_the_weights_and_indices_stay():
    """w_j / (1 - w_i) for the others; indices refer to the set that the first denoiser was built from."""
    model, z = build_denoiser("optimal", digits()), noisy()[:1]
    before = attribute(model, z, 0.7, top=60).behind
    first = int(before.index[0, 0, 0])
    for statistics in ("kept", "refitted"):
        after = attribute(without(model, [first], statistics), z, 0.7, top=10).behind
        assert after.index[0, 0].tolist() == before.index[0, 0, 1:11].tolist()
        expected = before.weight[0, 0, 1:11] / (1 - before.weight[0, 0, 0])
        torch.testing.assert_close(after.weight[0, 0], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("case", ["optimal", "locality", "els", "bbels", "ls", "pspc-square", "multiscale", "kernel",
                                  "locality-equivariant", "golden"])
def test_removal_effects_are_those_of_without(case):
    """x0_hat^(-i) = (x0_hat - w_i x_i) / (1 - w_i), also where one image has all the weight."""
    model, z = build(case, digits()), noisy()
    for sigma in (1.5, 0.1):
        effects = scorelens.removal_effects(model, z, sigma, top=3)
        for b in range(2):
            for k in range(3):
                direct = without(model, [int(effects.index[b, k])])(z[b:b + 1], sigma)[0]
                if case == "golden":  # the draw changes with the number of images
                    continue
                torch.testing.assert_close(effects.without[b, k], direct, atol=2e-4, rtol=0)
        assert (effects.change.diff(dim=1) <= 0).all()
    assert "rms" in effects.table()


def test_an_image_copied_many_times_is_found_first():
    """Ten copies of an image have ten times its weight; together they come first."""
    images = digits()
    copied = images.subset([*range(60), *[17] * 10])
    z = images[[17]] + 1.0 * seeded_noise(images.shape, [3])
    for name in ("optimal", "locality"):
        who = attribute(build_denoiser(name, copied), z, 1.0, top=11)
        assert set(who.behind.index[0, 0].tolist()) == {17, *range(60, 70)}


def test_a_planted_near_copy_of_a_sample_is_found_first():
    images = digits()
    result = scorelens.sample(build_denoiser("wiener", images), seeded_noise(images.shape, [5]), [3.0, 1.0, 0.3])
    pixels = ((result.images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
    planted = ImageSet(np.concatenate([images.pixels[:40], pixels, images.pixels[40:]]), "planted")
    z = result.images + 0.3 * seeded_noise(images.shape, [6])
    for name in ("optimal", "locality", "kernel", "multiscale"):
        who = attribute(build_denoiser(name, planted), z, 0.3, top=3, outputs=False)
        assert int(who.behind.index[0, 0, 0]) == 40, name


def test_pixels_regions_and_the_whole_image_are_means_over_outputs():
    model, z = build_denoiser("locality", digits()), noisy()
    found = outputs_behind(model, z, 0.6, 60)
    weights = torch.zeros(2, 1, 8, 8, 60, dtype=torch.float64)
    weights.scatter_add_(4, found.index.movedim(1, 4), found.weight.movedim(1, 4))
    pixel = attribute(model, z, 0.6, pixels=[(2, 3), (4, 4)], top=60, outputs=False).behind
    region = attribute(model, z, 0.6, region=(1, 2, 3, 4), top=60, outputs=False).behind
    whole = attribute(model, z, 0.6, top=60, outputs=False).behind
    for behind, t, expected in ((pixel, 0, weights[:, 0, 2, 3]), (pixel, 1, weights[:, 0, 4, 4]),
                                (region, 0, weights[:, 0, 1:4, 2:6].mean(dim=(1, 2))),
                                (whole, 0, weights[:, 0].mean(dim=(1, 2)))):
        torch.testing.assert_close(behind.weight[:, t], expected.gather(1, behind.index[:, t]), atol=1e-5, rtol=0)
        torch.testing.assert_close(behind.effective[:, t], 1 / expected.square().sum(dim=1), rtol=1e-4, atol=0)
        torch.testing.assert_close(behind.covered[:, t], torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)
    assert pixel.names == ("pixel (2, 3)", "pixel (4, 4)")


def test_a_trajectory_step_by_step_and_in_sum():
    model = build_denoiser("optimal", digits())
    samples = scorelens.sample(model, seeded_noise(digits().shape, range(2)), [5.0, 1.0, 0.2])
    who = scorelens.attribute_samples(model, samples, top=60)
    assert [step.sigma for step in who.steps] == [5.0, 1.0, 0.2]
    total = torch.zeros(2, 60, dtype=torch.float64)
    for step in who.steps:
        total.scatter_add_(1, step.behind.index[:, 0], step.behind.weight[:, 0] / 3)
    torch.testing.assert_close(who.total.weight[:, 0], total.gather(1, who.total.index[:, 0]))
    assert (who.steps[-1].behind.effective < 1.01).all()  # the optimal denoiser ends at a training image
    assert who.table().count("all steps") == 2


def test_a_network_is_answered_for_by_the_formula_that_predicts_it_best():
    images = digits()
    optimal, z = build_denoiser("optimal", images), noisy()
    network = lambda z, sigma: optimal(z, sigma) + 0.01  # noqa: E731
    who = attribute(network, z, 0.7, images=images)
    assert who.formula == "optimal"
    torch.testing.assert_close(who.r2, scorelens.r2(optimal(z, 0.7), network(z, 0.7)))
    torch.testing.assert_close(who.x0_hat, network(z, 0.7))
    assert torch.equal(who.behind.index, attribute(optimal, z, 0.7).behind.index)


@pytest.mark.parametrize(("call", "message"), [
    (lambda m, z: attribute(build_denoiser("wiener", digits()), z, 1.0), "kernel"),
    (lambda m, z: attribute(build_denoiser("local-wiener", digits()), z, 1.0), "kernel"),
    (lambda m, z: attribute(lambda z, sigma: z, z, 1.0), "images="),
    (lambda m, z: attribute(scorelens.guided(m, m), z, 1.0), "conditional"),
    (lambda m, z: attribute(m, z, 1.0, pixels=[(8, 0)]), "outside"),
    (lambda m, z: attribute(m, z, 1.0, pixels=[(0, 0)], region=(0, 0, 1, 1)), "exclude"),
    (lambda m, z: attribute(m, z, 1.0, region=(0, 0, 9, 1)), "inside"),
    (lambda m, z: attribute(m, z, 1.0, top=0), "top"),
    (lambda m, z: scorelens.attribute_samples(m, scorelens.sample(m, z, [1.0]), top=-1), "top"),
    (lambda m, z: attribute(m, z, -1.0), "sigma"),
    (lambda m, z: without(m, [60]), "between 0 and 59"),
    (lambda m, z: without(m, [-1]), "between 0 and 59"),
    (lambda m, z: attribute(m, z, 1.0, region=torch.zeros(8, 8, dtype=torch.bool)), "at least one pixel"),
    (lambda m, z: without(m, range(60)), "at least one must remain"),
    (lambda m, z: without(m, [0], "removed"), "statistics"),
    (lambda m, z: without(lambda z, sigma: z, [0]), "trained again"),
    (lambda m, z: without(lambda z, sigma: z, [0], "refitted"), "build_denoiser"),
    (lambda m, z: attribute(lambda z, sigma: z, z, 1.0, images=digits(), formulas=["wiener"]), "leave it out"),
])
def test_errors_name_the_way_out(call, message):
    with pytest.raises(ScorelensError, match=message):
        call(build_denoiser("optimal", digits()), noisy())


def test_guided_denoisers_lose_images_in_both_parts():
    images, z = digits(), noisy()
    optimal, locality = build_denoiser("optimal", images), build_denoiser("locality", images)
    guided = without(scorelens.guided(optimal, locality, 2.0), [3])
    expected = 2 * without(optimal, [3])(z, 0.6) - without(locality, [3])(z, 0.6)
    torch.testing.assert_close(guided(z, 0.6), expected)


def test_saved_folders_hold_numbers_pictures_and_a_page(tmp_path):
    model, z = build_denoiser("els", digits(), patch_size=3), noisy()
    who = attribute(model, z, 0.5)
    folder = who.save(tmp_path / "who")
    record = json.loads((folder / "attribution.json").read_text())
    assert record["targets"][1]["index"] == who.behind.index[1, 0].tolist()
    assert {"mosaic-0.png", "mosaic-1.png", "report.html"} <= {path.name for path in folder.iterdir()}
    assert (scorelens.removal_effects(model, z, 0.5, top=2).save(tmp_path / "removal") / "removal-1.png").exists()
    assert who.table().count("\n") == 21


def test_ownership_names_the_image_with_the_most_weight_over_the_channels():
    from scorelens.report.attribution import ownership

    pixels = np.random.default_rng(0).integers(0, 256, (9, 3, 4, 5), dtype=np.uint8)
    images = ImageSet(pixels, "colours")
    z = images[:1] + 0.4 * seeded_noise(images.shape, [0])
    who = attribute(build_denoiser("locality", images, threshold=0.3), z, 0.8, top=9)
    weights = torch.zeros(3, 4, 5, 9, dtype=torch.float64)
    weights.scatter_add_(3, who.outputs.index[0].movedim(0, 3), who.outputs.weight[0].movedim(0, 3))
    owned = ownership(who, 0)
    assert (owned.image == weights.mean(dim=0).argmax(dim=2).numpy()).all()
    np.testing.assert_allclose(owned.weight, weights.mean(dim=0).amax(dim=2).numpy())
    assert owned.used(int(owned.image[1, 2]))[1, 2]


def test_pixels_have_the_colour_of_the_shown_image_with_the_most_weight_around_them():
    """Among the images that are shown, by the mean over the square around; NONE where none has enough."""
    from scorelens.report.attribution import ENOUGH, NONE, main_images, ownership

    model, z = build_denoiser("locality", digits()), noisy()
    who = attribute(model, z, 0.6, top=60)
    weights = torch.zeros(8, 8, 60, dtype=torch.float64)
    weights.scatter_add_(2, who.outputs.index[1, :, 0].movedim(0, 2), who.outputs.weight[1, :, 0].movedim(0, 2))
    shown = main_images(who, 1, 3)
    best = max(range(60), key=lambda k: weights[..., k].sum())
    second = max(range(60), key=lambda k: torch.maximum(weights[..., k], weights[..., best]).sum())
    assert shown[:2] == [best, second] and len(set(shown)) == 3
    owned = ownership(who, 1, shown)
    for row, column in ((0, 0), (3, 4), (7, 2)):
        around = weights[max(0, row - 1):row + 2, max(0, column - 1):column + 2].mean(dim=(0, 1))[shown]
        expected = shown[int(around.argmax())] if around.max() >= ENOUGH else NONE
        assert owned.image[row, column] == expected
        if expected != NONE:
            assert owned.weight[row, column] == pytest.approx(float(weights[row, column, expected]))
    assert (ownership(who, 1, shown[2:]).image == NONE).any()


def test_used_pixels_of_translated_images_are_where_they_were():
    from scorelens.report.attribution import Ownership

    offset = np.zeros((2, 3, 2), int)
    offset[0, 1], offset[1, 2] = (1, 1), (1, 2)
    owned = Ownership(np.array([[5, 7, 5], [5, 5, 7]]), np.full((2, 3), 0.5), offset)
    assert owned.used(7).tolist() == [[False, True, False], [False, False, True]]
    assert owned.scaled(4, 6).used(7).sum() == 8


def test_the_mosaic_of_a_trajectory_is_of_a_clear_step_and_needs_outputs():
    model = build_denoiser("optimal", digits())
    samples = scorelens.sample(model, seeded_noise(digits().shape, [0]), [5.0, 0.4, 0.02])
    who = scorelens.attribute_samples(model, samples, outputs=True)
    titles = [axes.get_title(loc="left") for axes in who.mosaic().axes]
    assert [title for title in titles if title.startswith("σ")] == ["σ = 5", "σ = 0.4", "σ = 0.02"]
    assert "noise level σ = 0.4." in " ".join(text.get_text() for text in who.mosaic().texts)
    assert "noise level σ = 5." in " ".join(text.get_text() for text in who.mosaic(step=0).texts)
    with pytest.raises(ScorelensError, match="outputs=True"):
        attribute(model, noisy(), 0.5, outputs=False).figure()


def test_a_network_has_its_best_formula_at_each_step():
    """A network that is one formula at high noise and another at low noise."""
    images = digits()
    models = {name: build_denoiser(name, images) for name in ("optimal", "locality")}
    network = lambda z, sigma: models["optimal" if sigma > 1 else "locality"](z, sigma)  # noqa: E731
    samples = scorelens.sample(network, seeded_noise(images.shape, range(2)), [3.0, 0.5])
    who = scorelens.attribute_samples(network, samples, images=images, formulas=models)
    assert [step.formula for step in who.steps] == ["optimal", "locality"]
    for step in who.steps:
        torch.testing.assert_close(step.r2, torch.ones(2).to(step.r2), atol=1e-5, rtol=0)


def test_the_mask_through_which_a_pixel_is_compared():
    from scorelens.analysis.attribution import compared_pixels

    z, tiles = noisy()[:1], {"bandwidth": 0.5, "tile": 1}
    for name, options in (("locality", {}), ("kernel-locality", tiles)):
        model = build_denoiser(name, digits(), **options)
        masks = model.masks(0.6) if name == "kernel-locality" else model.masks(0.6).keep
        assert torch.equal(compared_pixels(model, z, 0.6, (2, 5)), masks[21].double().view(8, 8))
    square = torch.zeros(8, 8, dtype=torch.float64)
    square[1:4, 4:7] = 1
    assert torch.equal(compared_pixels(build_denoiser("ls", digits(), patch_size=3), z, 0.6, (2, 5)), square)
    corner = torch.zeros(8, 8, dtype=torch.float64)
    corner[:3, :3] = 1  # the corner lies in one window
    assert torch.equal(compared_pixels(build_denoiser("pspc-square", digits(), patch_size=3), z, 0.6, (0, 0)), corner)
    for name, options in (("els", {"patch_size": 3}), ("bbels", {"patch_size": 3}), ("optimal", {}), ("kernel", {})):
        assert compared_pixels(build_denoiser(name, digits(), **options), z, 0.6, (2, 5)) is None


def test_the_most_suspicious_samples_are_attributed_near_the_end():
    """explain: the two samples nearest to an image, at the noise level nearest to 0.3, by the best formula."""
    from scorelens.analysis.examination import Plan, Subject, build_models, suspicious_attribution

    images, network = digits(), scorelens.load_network("digits-unet")
    models = build_models(("optimal", "wiener"), images)
    samples = scorelens.sample(network, seeded_noise(images.shape, range(4)), [5.0, 0.35, 0.02])
    subject = Subject(network, images, None, models, torch.device("cpu"))
    plan = Plan(samples=4, held_out=0, models=dict.fromkeys(models, 4), left_out=[], fields=0)
    who = suspicious_attribution(subject, plan, samples, [2, 0, 1])
    assert who.sigma == 0.35 and torch.equal(who.z, samples.steps[1].z[[2, 0]])
    assert suspicious_attribution(subject, Plan(4, 0, {"wiener": 4}, [], 0), samples, [2, 0]) is None


def test_a_region_may_be_a_mask():
    model, z, mask = build_denoiser("locality", digits()), noisy(), torch.zeros(8, 8, dtype=torch.bool)
    mask[1:4, 2:6] = True
    by_mask, by_corners = (attribute(model, z, 0.6, region=region, outputs=False).behind
                           for region in (mask, (1, 2, 3, 4)))
    torch.testing.assert_close(by_mask.weight, by_corners.weight)
    assert torch.equal(by_mask.index, by_corners.index)


def test_images_and_classes_are_those_of_the_callers_set():
    """Also where the denoiser averages a class of it: indices, pictures and labels agree."""
    images = digits()
    who = attribute(build_denoiser("optimal", images, classes=[3, 7]), noisy(), 0.8, top=3)
    found = who.behind.index.flatten().tolist()
    assert torch.equal(who.pictures(found), images[found])
    assert [who.label(index) for index in found] == [str(int(images.labels[index])) for index in found]
    assert {who.label(index) for index in found} <= {"3", "7"}
    assert [line.split("|")[5].strip() for line in who.table().splitlines()[2:]] == [who.label(k) for k in found]


@pytest.mark.parametrize(("name", "options"), [("smoothed", {"draws": 3, "neighbours": 5}),
                                               ("locality", {"softmax": "batch-mean", "softmax_batch": 7})])
def test_removal_effects_of_mixtures_are_computed_again(name, options):
    """Means over draws or batches do not renormalize."""
    model, z = build_denoiser(name, digits(), **options), noisy(1)
    effects = scorelens.removal_effects(model, z, 0.8, top=2)
    for k in range(2):
        direct = without(model, [int(effects.index[0, k])])(z, 0.8)[0]
        torch.testing.assert_close(effects.without[0, k], direct, atol=1e-5, rtol=0)
