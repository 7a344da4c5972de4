import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from scorelens.metrics import PrecisionRecall, precision_recall, summary
from tests.ground_truth.cases import image_set


def pairs():
    reference = scorelens.seeded_noise((3, 4, 5), range(6))
    return reference + 0.3 * scorelens.seeded_noise((3, 4, 5), range(10, 16)), reference


def test_r2_by_its_definition():
    prediction, reference = pairs()
    p, r = prediction.flatten(1).double().numpy(), reference.flatten(1).double().numpy()
    expected = [1 - ((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum() for a, b in zip(p, r, strict=True)]
    np.testing.assert_allclose(scorelens.r2(prediction, reference).numpy(), expected, rtol=1e-12)


def test_pearson_equals_numpy():
    prediction, reference = pairs()
    expected = [np.corrcoef(a, b)[0, 1] for a, b in
                zip(prediction.flatten(1).double().numpy(), reference.flatten(1).double().numpy(), strict=True)]
    np.testing.assert_allclose(scorelens.pearson(prediction, reference).numpy(), expected, rtol=1e-12)


def test_perfect_and_useless_predictions():
    _, reference = pairs()
    mean = reference.flatten(1).double().mean(1)[:, None, None, None].expand(reference.shape)
    torch.testing.assert_close(scorelens.r2(reference, reference), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(scorelens.r2(mean, reference.double()), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(scorelens.pearson(3 * reference + 1, reference), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(scorelens.mse(reference + 0.5, reference), torch.full((6,), 0.25, dtype=torch.float64))


def test_r2_of_a_constant_reference_is_not_a_number():
    assert scorelens.r2(torch.rand(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)).isnan().all()


def test_shapes_must_agree():
    with pytest.raises(scorelens.ScorelensError, match="differ in shape"):
        scorelens.r2(torch.zeros(1, 1, 2, 2), torch.zeros(2, 1, 2, 2))


def test_novelty_of_a_shifted_training_image():
    images = image_set("random", 40)
    found = scorelens.novelty(images[[7]] + 0.01, images)
    assert found.index.tolist() == [7]
    assert found.mse.item() == pytest.approx(1e-4, rel=1e-4)
    assert found.rms.item() == pytest.approx(1e-2, rel=1e-4)


def test_memorized_counts_images_much_closer_to_one_than_to_any_other():
    images = image_set("random", 40)
    halfway = (images[[0]] + images[[1]]) / 2
    copies = images[[2, 3, 4]] + 0.001
    assert scorelens.memorized(torch.cat([halfway, copies]), images) == 0.75


def test_a_duplicated_training_image_is_not_a_division_by_zero():
    """Nearest and second nearest are both at distance 0: the ratio is 1, not NaN."""
    images = ImageSet(np.repeat(image_set("random", 3).pixels, 2, axis=0), "twice")
    assert scorelens.novelty(images[[0]], images).ratio.tolist() == [1]


def test_novelty_refuses_other_shapes():
    with pytest.raises(scorelens.ScorelensError, match="shape"):
        scorelens.novelty(torch.zeros(1, 3, 4, 5), image_set("random", 5))


def covered(points, centres, k):
    """By the definition: points no farther from some centre than its k-th nearest other centre is."""
    points, centres = ([x.flatten().double().numpy() for x in images] for images in (points, centres))
    squares = lambda a, b: ((a - b) ** 2).sum()  # noqa: E731
    radii = [sorted(squares(c, other) for j, other in enumerate(centres) if j != i)[k - 1]
             for i, c in enumerate(centres)]
    return sum(any(squares(p, c) <= r for c, r in zip(centres, radii, strict=True)) for p in points) / len(points)


def clouds(n=30, m=45, shift=1.2):
    """Generated and real images that overlap in part: precision and recall lie inside (0, 1), and differ."""
    generated = 0.8 * scorelens.seeded_noise((2, 2, 1), range(n)) + shift
    return generated, scorelens.seeded_noise((2, 2, 1), range(100, 100 + m))


@pytest.mark.parametrize("k", [1, 3, 7])
def test_precision_and_recall_by_their_definition(k):
    generated, real = clouds()
    found = precision_recall(generated, real, k)
    assert found == PrecisionRecall(covered(generated, real, k), covered(real, generated, k))
    assert 0 < found.recall < 1 and 0 < found.precision < 1 and found.precision != found.recall


def test_precision_and_recall_do_not_depend_on_chunks():
    generated, real = clouds()
    assert len({precision_recall(generated, real, chunk=chunk) for chunk in (1, 7, 30, 45, 1000)}) == 1


def test_precision_and_recall_of_the_same_set_are_1():
    """In other precisions as well, and where every image is there twice: all radii are 0, and the boundary counts."""
    generated, _ = clouds()
    assert precision_recall(generated, generated.flip(0)) == PrecisionRecall(1, 1)
    assert precision_recall(generated.half().double(), generated.half()) == PrecisionRecall(1, 1)
    twice = generated.repeat(2, 1, 1, 1)
    assert precision_recall(twice, twice, k=1) == PrecisionRecall(1, 1)
    assert precision_recall(twice + 1e-6, twice, k=1) == PrecisionRecall(0, 0)


def test_precision_and_recall_of_sets_far_apart_are_0():
    generated, real = clouds(shift=100.0)
    assert precision_recall(generated, real) == PrecisionRecall(0, 0)


def test_a_generator_that_drops_a_mode_loses_recall_only():
    left, right = clouds(20, 60, shift=0.0)
    modes = torch.cat([left - 50, right + 50])
    assert precision_recall(left - 50, modes) == PrecisionRecall(precision=1, recall=0.25)
    assert precision_recall(modes, left - 50) == PrecisionRecall(precision=0.25, recall=1)


@pytest.mark.parametrize("seed", range(10))
def test_images_on_a_boundary_count(seed):
    """On a lattice many distances tie exactly: a rounded one would put images on the wrong side."""
    rng = np.random.default_rng(seed)
    generated, real = (torch.from_numpy(rng.integers(-2, 3, (8, 1, 2, 3))).double() for _ in range(2))
    found = precision_recall(generated, real, k=2, chunk=3)
    assert found == PrecisionRecall(covered(generated, real, 2), covered(real, generated, 2))


@pytest.mark.parametrize("far", [999, 1001, 1003, 1005, 1007])
def test_images_on_the_boundary_of_an_outlier_count(far):
    """A constant outlier is as far from an image as from any permutation of its pixels."""
    image = torch.tensor([3.0, 1, -1, -3, 2, -2])
    real = torch.stack([torch.full((6,), float(far)), image, image - 0.1]).reshape(3, 1, 2, 3)
    generated = torch.stack([image.roll(k) for k in range(1, 6)]).reshape(5, 1, 2, 3)
    assert precision_recall(generated, real, k=1).precision == 1


@pytest.mark.parametrize(("generated", "real", "k", "message"), [
    ((5, 1, 2, 2), (5, 1, 2, 2), 0, "at least 1"), ((5, 1, 2, 2), (4, 1, 2, 2), 4, "k = 4 with 5 generated and 4 real"),
    ((3, 1, 2, 2), (9, 1, 2, 2), 3, "less than the number"), ((5, 1, 2, 2), (5, 1, 1, 4), 3, "shape"),
    ((0, 1, 2, 2), (5, 1, 2, 2), 1, "less than the number")])
def test_impossible_precision_and_recall_are_refused(generated, real, k, message):
    with pytest.raises(scorelens.ScorelensError, match=message):
        precision_recall(torch.zeros(generated), torch.zeros(real), k)


def test_precision_and_recall_refuse_what_is_not_a_number():
    generated, real = clouds()
    generated[3, 0, 0, 0] = torch.nan
    for pair in ((generated, real), (real, generated)):
        with pytest.raises(scorelens.ScorelensError, match="NaN"):
            precision_recall(*pair)


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    """95 % intervals of 60 normal values, 200 times: between 89 % and 99 % hold the true mean."""
    hits = 0
    for seed in range(200):
        values = scorelens.seeded_noise((60,), [seed])[0]
        interval = scorelens.bootstrap(values, resamples=400)
        assert interval.low <= interval.mean <= interval.high
        hits += interval.low <= 0 <= interval.high
    assert 178 <= hits <= 198


def test_bootstrap_needs_one_value_per_image():
    with pytest.raises(scorelens.ScorelensError, match="one value per image"):
        scorelens.bootstrap(torch.zeros(2, 2))


def test_summary_tells_mean_std_median_and_interval():
    values = torch.tensor([1.0, 2.0, 3.0, 10.0])
    told = summary(values)
    assert told["mean"] == 4 and told["median"] == 2.5
    assert told["std"] == pytest.approx(np.std([1, 2, 3, 10], ddof=1))
    assert 1 <= told["low"] < 4 < told["high"] <= 10
    assert summary(torch.tensor([2.0])) == {"mean": 2, "std": 0, "median": 2, "low": 2, "high": 2}
