import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from scorelens.metrics import summary
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
