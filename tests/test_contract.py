"""The public names of the design, as a user would type them."""

import subprocess
import sys

import pytest
import torch

import scorelens


def test_public_names_work_as_written():
    images = scorelens.load_images("digits")
    assert images.shape == (1, 8, 8)
    assert len(images) == 1797
    stats = scorelens.fit_gaussian(images)
    assert stats.mean.shape == (64,)
    assert stats.eigenvalues.shape == (64,)
    assert stats.eigenvectors.shape == (64, 64)
    assert stats.count == 1797
    model = scorelens.build_denoiser("locality", images, threshold=0.02)
    noise = scorelens.seeded_noise(images.shape, seeds=range(8))
    result = scorelens.sample(model, noise, scorelens.ddim_sigmas(10))
    assert result.images.shape == (8, 1, 8, 8)
    assert len(result.steps) == 10
    assert result.steps[3].z.shape == result.steps[3].x0_hat.shape == (8, 1, 8, 8)
    assert isinstance(result.steps[3].sigma, float)
    assert scorelens.r2(result.images, noise).shape == scorelens.mse(result.images, noise).shape == (8,)
    scorelens.check_denoiser(model)


def test_locality_defaults_to_the_paper():
    """Threshold 0.02, the paper's mask rule, the exact softmax."""
    images = scorelens.load_images("digits", limit=200)
    z = images[:2] + 0.5 * scorelens.seeded_noise(images.shape, range(2))
    spelled = scorelens.build_denoiser("locality", images, threshold=0.02, mask_rule="paper", softmax="exact")
    torch.testing.assert_close(scorelens.build_denoiser("locality", images)(z, 0.5), spelled(z, 0.5), rtol=0, atol=0)


@pytest.mark.slow
def test_grid_noise_levels_may_be_given_as_tensors():
    images = scorelens.load_images("digits", limit=50)
    for name in scorelens.DENOISERS:
        model = scorelens.build_denoiser(name, images)
        for sigma in scorelens.ddim_sigmas(3):
            torch.testing.assert_close(model(images[:1], sigma), model(images[:1], sigma.item()), rtol=0, atol=0)


@pytest.mark.e2e
def test_import_is_light():
    """Neither diffusers, torchvision, matplotlib nor scikit-learn, nor any picture library, is loaded by the import."""
    heavy = "diffusers torchvision matplotlib sklearn PIL datasets yaml safetensors.numpy"
    code = f"import sys, scorelens; print([m for m in {heavy.split()!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_version_is_that_of_the_distribution():
    import importlib.metadata

    assert scorelens.__version__ == importlib.metadata.version("scorelens")
