"""Class-conditional sources: a method on the images of one class alone."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.edits import only_classes
from tests.ground_truth.cases import smooth

METHODS = {"optimal": {}, "wiener": {}, "locality": {"threshold": 0.1}, "els": {"patch_size": 3},
           "kernel": {"bandwidth": 0.4}}
NAMES = ("cat", "dog", "bird")


@pytest.fixture
def images():
    return scorelens.ImageSet(smooth(60, (1, 4, 5)), "pets", labels=np.arange(60) % 3, class_names=NAMES)


def noisy(images, count):
    return images[:count].double() + 0.5 * scorelens.seeded_noise(images.shape, range(count)).double()


@pytest.mark.parametrize("name", METHODS)
def test_classes_are_the_same_method_on_their_images_alone(name, images):
    z = noisy(images, 3)
    chosen = scorelens.build_denoiser(name, images, classes=["dog"], **METHODS[name])
    alone = scorelens.build_denoiser(name, only_classes(images, ["dog"]), **METHODS[name])
    torch.testing.assert_close(chosen(z, 0.5), alone(z, 0.5), rtol=0, atol=0)
    everything = scorelens.build_denoiser(name, images, **METHODS[name])
    assert (chosen(z, 0.5) - everything(z, 0.5)).abs().max() > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_labels_choose_the_source_of_each_noisy_image(name, images):
    z, labels = noisy(images, 4), ["bird", 0, "bird", "dog"]
    mixed = scorelens.build_denoiser(name, images, labels=labels, **METHODS[name])(z, 0.5)
    for k, label in enumerate(labels):
        alone = scorelens.build_denoiser(name, only_classes(images, [label]), **METHODS[name])
        torch.testing.assert_close(mixed[k:k + 1], alone(z[k:k + 1], 0.5), rtol=0, atol=1e-9)


def test_labels_keep_the_gradient(images):
    z = noisy(images, 2).requires_grad_(True)
    model = scorelens.build_denoiser("optimal", images, labels=["dog", "cat"])
    assert torch.autograd.gradcheck(lambda z: model(z, 0.5), (z,), eps=1e-6, atol=1e-6)


def test_mistakes_are_named(images):
    with pytest.raises(scorelens.ScorelensError, match="fish"):
        scorelens.build_denoiser("optimal", images, labels=["fish"])
    with pytest.raises(scorelens.ScorelensError, match="none was given"):
        scorelens.build_denoiser("optimal", images, labels=[])
    with pytest.raises(scorelens.ScorelensError, match="2 labels were given for 3"):
        scorelens.build_denoiser("optimal", images, labels=["dog", "cat"])(noisy(images, 3), 0.5)
