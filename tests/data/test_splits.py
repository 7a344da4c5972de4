import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorelens.data import ImageSet, load_images
from scorelens.data.edits import seeded_part
from scorelens.types import ScorelensError


def numbered(count: int) -> ImageSet:
    """Image k is known by its label k."""
    return ImageSet(np.zeros((count, 1, 1, 1), np.uint8), "numbered", labels=np.arange(count))


@given(count=st.integers(10, 500))
def test_the_parts_are_disjoint_ordered_and_cover_everything(count: int) -> None:
    """Test is floor(N/10) images; train and test are a partition; each is in the original order."""
    train, test = (seeded_part(numbered(count), split).labels for split in ("train", "test"))
    assert train is not None and test is not None
    assert len(test) == count // 10
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(count))
    assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()


def test_the_test_part_is_scattered() -> None:
    """Not the last tenth: sorted files and sorted classes would leave whole classes out."""
    test = seeded_part(numbered(1000), "test").labels
    assert test is not None and 400 < test.mean() < 600 and test.min() < 100 and test.max() > 900


@pytest.mark.parametrize("options", [{"seed": 7}, {"limit": 1000}, {"flips": True}, {"resolution": 4}, {"channels": 3}])
def test_no_option_moves_an_image_between_the_parts(options: dict) -> None:
    """The test labels of the digits, which change with the slightest change of the split, stay."""
    plain = load_images("digits", split="test").labels
    np.testing.assert_array_equal(load_images("digits", split="test", **options).labels[:179], plain)


@given(count=st.integers(1, 9))
def test_an_empty_test_part_is_refused(count: int) -> None:
    with pytest.raises(ScorelensError, match="numbered: the test split is empty"):
        seeded_part(numbered(count), "test")
    assert len(seeded_part(numbered(count), "train")) == count


def test_an_unknown_split_is_answered_with_the_nearest() -> None:
    with pytest.raises(ScorelensError, match="unknown split 'tset', did you mean 'test'"):
        load_images("digits", split="tset")


def test_the_part_knows_its_name() -> None:
    assert [load_images("digits", split=split).split for split in ("train", "test", "all")] == ["train", "test", "all"]
