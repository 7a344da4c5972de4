"""The U-Nets of other repositories, renamed for diffusers, compute what their descriptions say."""

from typing import Any

import pytest
import torch

from scorelens import ScorelensError, seeded_noise
from scorelens.networks.foreign_unets import build_foreign_unet, is_foreign_unet
from tests.networks.foreign import Weights, ddpm_torch, pytorch_ddpm

PAPER = {"28x28": (1, (28,), 64, (1, 2, 2)), "32x32 and 64x64": (3, (32, 64), 128, (1, 2, 3, 4))}
FORWARDS = {"pytorch-ddpm": pytorch_ddpm, "ddpm-torch": ddpm_torch}


def written(forward: Any, shape: tuple, width: int, multipliers: tuple, **options: Any) -> tuple[Weights, Any]:
    """Weights, and the network's output for two noisy images, by the description."""
    weights, x = Weights(), seeded_noise(shape, [1, 2])
    with torch.no_grad():
        return weights, forward(weights, x, torch.tensor([3, 871]), width, multipliers, **options)


@pytest.mark.slow
@pytest.mark.parametrize("size", PAPER)
@pytest.mark.parametrize("family", FORWARDS)
def test_networks_of_the_papers_sizes(family: str, size: str) -> None:
    """Every block of every dataset's network, to rounding."""
    channels, sides, width, multipliers = PAPER[size]
    weights, t = Weights(), torch.tensor([871])
    for side in sides:
        x = seeded_noise((channels, side, side), [side])
        with torch.no_grad():
            expected = FORWARDS[family](weights, x, t, width, multipliers)
            model = build_foreign_unet(weights, side)
            found = model(x, t).sample
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * expected.abs().max().item())
        assert model.config.block_out_channels == tuple(width * m for m in multipliers)
        assert model.config.sample_size == side and model.config.in_channels == channels


@pytest.mark.parametrize("family", FORWARDS)
@pytest.mark.parametrize("options", [{}, {"attention": (1,)}, {"attention": (0, 1), "blocks": 1}, {"blocks": 3}],
                         ids=str)
def test_small_networks_in_float64(family: str, options: dict) -> None:
    """Other widths, depths and levels with attention."""
    weights, _ = written(FORWARDS[family], (2, 8, 8), 32, (1, 2), **options)
    wide = Weights()
    wide.update({name: value.double() for name, value in weights.items()})
    x, t = seeded_noise((2, 8, 8), [5, 6]).double(), torch.tensor([0, 999])
    model = build_foreign_unet(weights).double()
    with torch.no_grad():
        expected, found = FORWARDS[family](wide, x, t, 32, (1, 2), **options), model(x, t).sample
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # diffusers' sinusoids are float32
    assert sum(p.numel() for p in model.parameters()) == sum(
        value.numel() for name, value in weights.items() if "timembedding.0" not in name)


def test_weights_that_do_not_fit() -> None:
    weights, _ = written(pytorch_ddpm, (1, 8, 8), 32, (1, 2))
    assert is_foreign_unet(weights) and not is_foreign_unet({"conv_in.weight": torch.zeros(1)})
    for changed, message in (
            ({"tail.2.bias": None}, "conv_out.bias"), ({"head.bias": torch.zeros(5)}, "1 of them .* conv_in.bias"),
            ({"extra.weight": torch.zeros(2)}, "extra.weight"),
            ({"time_embedding.timembedding.0.weight": torch.zeros(1000, 32)}, "time embedding .* was trained")):
        changed = {name: value for name, value in {**weights, **changed}.items() if value is not None}
        with pytest.raises(ScorelensError, match=message):
            build_foreign_unet(changed)
