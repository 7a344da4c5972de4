"""Latents: round trips, their cache, and the same denoisers on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny

from scorelens import (
    ScorelensError,
    build_denoiser,
    compare,
    explain,
    load_images,
    load_network,
    report_card,
    sample,
    sensitivity,
    train,
)
from scorelens.cli.parser import main
from scorelens.data import array_cache, encode_images
from scorelens.data.images import ImageSet
from scorelens.metrics import novelty
from scorelens.noise import beta_schedule, ddim_sigmas, seeded_noise
from scorelens.statistics import GaussianStats
from tests.networks.makers import randomized, tiny_unet

SIZES = {"block_out_channels": (4, 8), "layers_per_block": 1}


def tiny_kl(**changes: Any) -> AutoencoderKL:
    return randomized(AutoencoderKL, {
        "in_channels": 1, "out_channels": 1, "down_block_types": ("DownEncoderBlock2D",) * 2, "norm_num_groups": 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 2, "scaling_factor": 0.7, **SIZES, **changes})


def tiny_taesd() -> AutoencoderTiny:
    return randomized(AutoencoderTiny, {
        "in_channels": 1, "out_channels": 1, "encoder_block_out_channels": (4, 4), "num_encoder_blocks": (1, 1),
        "decoder_block_out_channels": (4, 4), "num_decoder_blocks": (1, 1), "latent_channels": 2,
        "scaling_factor": 1.5})


@pytest.fixture
def digits() -> ImageSet:
    return load_images("digits", limit=80)


@pytest.mark.parametrize("model", [tiny_kl(), tiny_kl(shift_factor=0.3), tiny_taesd()], ids=["kl", "shift", "tiny"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_encode_and_decode(digits: ImageSet, model: Any, dtype: str) -> None:
    """(mean - shift) * scaling and back, as diffusers' pipelines have it."""
    encoded = encode_images(digits, model, dtype)
    posterior = model.encode(digits[:70])
    raw = posterior.latents if isinstance(model, AutoencoderTiny) else posterior.latent_dist.mode()
    shift = model.config.get("shift_factor") or 0.0
    expected = (raw - shift) * model.config.scaling_factor
    tolerance = 1e-5 if dtype == "float32" else 1e-3 * expected.abs().max().item()
    torch.testing.assert_close(encoded[:70], expected, rtol=0, atol=tolerance)
    assert encoded.shape == (2, 4, 4) and encoded.pixels.dtype == np.float32
    assert (encoded.labels == digits.labels).all() and encoded.record["autoencoder"]["class"] == type(model).__name__
    torch.testing.assert_close(encoded.pictures(expected), model.decode(raw).sample, rtol=0, atol=1e-5)
    assert torch.equal(digits.pictures(expected), expected)


def test_images_are_encoded_once(digits: ImageSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache is keyed by the images and by the weights and settings of the autoencoder, whatever their names."""
    monkeypatch.setenv("SCORELENS_CACHE", str(tmp_path / "cache"))
    written, write = [], array_cache.new_array
    monkeypatch.setattr(array_cache, "new_array", lambda *args: written.append(args) or write(*args))
    model = tiny_kl()
    model.save_pretrained(tmp_path / "pipeline" / "vae")
    again = [encode_images(digits, each) for each in (model, tmp_path / "pipeline", tmp_path / "pipeline" / "vae")]
    assert len(written) == 1 and len({each.fingerprint for each in again}) == 1
    others = [encode_images(digits, tiny_kl(scaling_factor=0.8)), encode_images(load_images("digits", limit=79), model)]
    assert len(written) == 3 and again[0].fingerprint not in {each.fingerprint for each in others}


def test_what_cannot_encode(digits: ImageSet, tmp_path: Path) -> None:
    encoded = encode_images(digits, tiny_kl())
    (tmp_path / "config.json").write_text('{"_class_name": "VQModel"}')
    for images, coder, message in (
            (encoded, tiny_kl(), "latents already"), (digits, tmp_path / "none", "there is no autoencoder in"),
            (digits, tmp_path, "unknown autoencoder class in .*VQModel"), (digits, tiny_unet(), "UNet2DModel"),
            (digits, tiny_kl(in_channels=3), "takes 3 channels, the images have 1")):
        with pytest.raises(ScorelensError, match=message):
            encode_images(images, coder)


def brute_force(x: np.ndarray, z: np.ndarray, sigma: float, mask: np.ndarray, q: int) -> float:
    logits = -((z - x) ** 2 * mask).sum(axis=1) / (2 * sigma**2)
    weights = np.exp(logits - logits.max())
    return float((weights * x[:, q]).sum() / weights.sum())


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
def test_locality_of_1000_latents(sigma: float) -> None:
    """4 x 32 x 32 latents, in float64 by brute force with masks from the Wiener matrix, at 24 outputs."""
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=(1000, 4, 16, 16)).repeat(2, 2).repeat(2, 3) + 0.3 * rng.normal(size=(1000, 4, 32, 32))
    images = ImageSet((1.3 * smooth).astype(np.float32), "latents")
    x = images[:].flatten(1).double()
    u, s, _ = torch.linalg.svd((x - x.mean(0)).T, full_matrices=False)  # quicker than the covariance
    stats = GaussianStats(x.mean(0), s[:-1]**2 / 999, u[:, :-1], 1000)
    u, x = stats.eigenvectors, x.numpy()
    z = images[:2].double() + sigma * seeded_noise(images.shape, range(2), dtype=torch.float64)
    outputs = torch.from_numpy(rng.permutation(images.dim)[:24])
    w = (u[outputs] * (stats.eigenvalues / (stats.eigenvalues + sigma**2))) @ u.T
    w = w.abs().numpy()
    masks = w >= 0.05 * w.max(axis=1, keepdims=True)
    assert masks.sum(axis=1).min() > 1 and masks.sum(axis=1).max() < images.dim
    flat = z.flatten(1).numpy()
    expected = [[brute_force(x, row, sigma, mask, int(q)) for mask, q in zip(masks, outputs, strict=True)]
                for row in flat]
    model = build_denoiser("locality", images, threshold=0.05, stats=stats)
    torch.testing.assert_close(model.at(z, sigma, outputs), torch.tensor(expected, dtype=torch.float64), rtol=0,
                               atol=1e-9)


def test_samples_of_latents_are_not_clipped(digits: ImageSet) -> None:
    """Formulas know it from their images, networks from their folder or an option."""
    images = encode_images(digits, tiny_kl(scaling_factor=40.0))
    assert images[:].abs().max() > 5
    noise, sigmas = seeded_noise(images.shape, range(2)), ddim_sigmas(3)
    result = sample(build_denoiser("nearest", images), noise, sigmas)
    assert (novelty(result.images, images).rms < 1e-4).all() and result.images.abs().max() > 1
    assert sample(build_denoiser("nearest", images), noise, sigmas, clip=True).images.abs().max() <= 1
    options = {"parametrization": "x0", "schedule": beta_schedule()}
    for latent in (True, False):
        network = load_network(lambda x, t: 3 + 0 * x, latent=latent, **options)
        assert sample(network, noise, sigmas).images.max() == (3 if latent else 1)


@pytest.mark.slow
def test_a_latent_network_from_training_to_verdict(digits: ImageSet, tmp_path: Path) -> None:
    """train, load, compare, fields, report card and verdict; the folder holds the autoencoder, pictures are decoded."""
    coder = tiny_kl()
    images, heldout = (load_images("digits", split=split, limit=60, autoencoder=coder) for split in ("train", "test"))
    train(images, tmp_path / "net", epochs=1)
    network = load_network(str(tmp_path / "net"), shape=images.shape)
    assert network.latent and network.card["data"]["autoencoder"]["scaling_factor"] == 0.7
    again = load_images("digits", split="train", limit=60, autoencoder=tmp_path / "net")
    assert again.fingerprint == images.fingerprint
    compared = compare(str(tmp_path / "net"), images, ["wiener", "locality"], num=2, steps=3)
    assert compared._pictures()[0].images.shape == (2, 1, 8, 8) and len(compared.rows) == 3
    assert sensitivity(network, images[:1], 1.0, (2, 2)).shape == (1, 2, 4, 4)
    card = report_card(network, images, heldout, sigmas=[0.5, 5.0], count=4, shown=0)
    assert {tuple(row.images.shape) for row in card.picture} == {(2, 1, 8, 8)}
    verdict = explain(network, images, heldout, formulas=["wiener", "optimal"], minutes=0.02)
    verdict.save(tmp_path / "verdict")
    assert verdict.findings.suspicious.shape[1:] == (1, 8, 8) and (tmp_path / "verdict" / "report.html").exists()


@pytest.mark.e2e
def test_the_commands_take_an_autoencoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_kl().save_pretrained(tmp_path / "vae")
    data = ["--data", "digits", "--limit", "50", "--autoencoder", str(tmp_path / "vae"), "--latent-dtype", "float16"]
    out = tmp_path / "out"
    assert main(["sample", *data, "--denoiser", "wiener", "--num", "2", "--steps", "3", "--out", str(out)]) == 0
    assert np.load(out / "images.npz")["floats"].shape == (2, 1, 8, 8)
    assert np.load(out / "trajectory.npz")["z"].shape == (3, 2, 2, 4, 4)
    assert main(["sample", *data[:4], "--autoencoder", str(tmp_path / "none"), "--num", "2"]) == 2
    assert "there is no autoencoder in" in capsys.readouterr().err
