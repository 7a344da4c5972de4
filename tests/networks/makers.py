"""Tiny networks of diffusers, and folders in which someone else might have saved them."""

from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler, DiTTransformer2DModel, UNet2DModel
from torch import Tensor, nn


def tiny_unet(**changes: Any) -> UNet2DModel:
    settings = {"sample_size": 8, "in_channels": 1, "out_channels": 1, "block_out_channels": (8, 16),
                "norm_num_groups": 4, "layers_per_block": 1, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return randomized(UNet2DModel, {**settings, **changes})


def tiny_dit(**changes: Any) -> DiTTransformer2DModel:
    settings = {"sample_size": 8, "in_channels": 1, "patch_size": 2, "num_layers": 1, "num_attention_heads": 2,
                "attention_head_dim": 4, "num_embeds_ada_norm": 3}
    return randomized(DiTTransformer2DModel, {**settings, **changes})


def randomized(kind: type, settings: dict[str, Any]) -> Any:
    """Weights that are all at work: layers that start at zero would hide whatever happens before them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(**settings)
        for parameter in model.parameters():
            scale = 0.5 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.2
            parameter.data += scale * torch.randn(parameter.shape)
    return model.eval().requires_grad_(False)


def save_pipeline(path: Path, model: nn.Module, scheduler: Any) -> Path:
    """A pipeline's folder: model in unet/ or transformer/, scheduler/."""
    model.save_pretrained(path / ("unet" if isinstance(model, UNet2DModel) else "transformer"))
    scheduler.save_pretrained(path / "scheduler")
    return path


def diffusers_x0(model: nn.Module, scheduler: DDPMScheduler, z: Tensor, t: int, **options: Any) -> Tensor:
    """x0 as diffusers has it: x_t = sqrt(a_t) z, the model at the integer t, one step without clipping."""
    plain = DDPMScheduler.from_config(scheduler.config, clip_sample=False)
    x_t = (plain.alphas_cumprod[t].double().sqrt() * z).to(z.dtype)
    output = model(x_t, torch.tensor(t), **options).sample
    return plain.step(output, t, x_t, generator=torch.Generator()).pred_original_sample
