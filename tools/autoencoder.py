"""The small autoencoders of the zoo, of the leaves and of CIFAR-10: 3 x 32 x 32 to latents of 4 x 16 x 16.

    nice -n 19 python -m tools.autoencoder RUN leaves      trains one, resumes if interrupted, writes zoo/leaves-vae

The scaling factor of its config makes the latents of the training images vary by 1, as latent diffusion wants it.
"""

from __future__ import annotations

import math
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from scorelens.data import ImageSet, load_images
from scorelens.files import write_json
from scorelens.networks.training_loop import State, load_checkpoint, save_checkpoint, update
from tools.zoo import ROOT

STEPS, BATCH, SEED, SAVED = 900, 32, 0, 50  # SAVED: steps between checkpoints
RATE, KL, AVERAGE = 3e-3, 1e-4, 0.99  # learning rate, weight of the KL divergence, decay of the averaged weights
SIZES: dict[str, Any] = {
    "block_out_channels": (16, 32), "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 8,
    "sample_size": 32, "mid_block_add_attention": False}


def train(images: ImageSet, checkpoint: Path) -> State:
    """The autoencoder after all steps; a checkpoint is resumed."""
    from diffusers import AutoencoderKL

    torch.manual_seed(SEED)
    model = AutoencoderKL(**SIZES)
    state = State(model, deepcopy(model).requires_grad_(False), torch.optim.Adam(model.parameters(), fused=True))
    if checkpoint.exists():
        load_checkpoint(checkpoint, state)
    while state.step < STEPS:
        update(state, loss_of(model, images, state.step), RATE * math.cos(math.pi / 2 * state.step / STEPS), AVERAGE)
        if state.step % SAVED == 0:
            save_checkpoint(checkpoint, state)
            print(f"step {state.step}: loss {state.loss:.4f}", flush=True)
    return state


def loss_of(model: Any, images: ImageSet, step: int) -> Tensor:
    """Squared error of the decoded sample, and KL divergence of its latents from a standard normal distribution."""
    epoch, k = divmod(step, len(images) // BATCH)
    rows = np.random.default_rng((SEED, epoch)).permutation(len(images))[k * BATCH:(k + 1) * BATCH]
    x = images[rows]
    posterior = model.encode(x).latent_dist
    noise = torch.randn(posterior.mean.shape, generator=torch.Generator().manual_seed(step))
    decoded = model.decode(posterior.mean + posterior.std * noise).sample
    return functional.mse_loss(decoded, x) + KL * posterior.kl().mean() / posterior.mean[0].numel()


@torch.no_grad()
def publish(state: State, images: ImageSet, folder: Path) -> None:
    """Write the averaged weights, with the scaling factor of these images, and what they were trained on."""
    model: Any = state.averaged
    latents = torch.cat([model.encode(x).latent_dist.mean for x in images.chunks(256)])
    model.register_to_config(scaling_factor=round(1 / latents.std().item(), 5))
    model.half().save_pretrained(folder)
    test = load_images(images.name, split="test")[:1000]
    error = functional.mse_loss(model.float().decode(model.encode(test).latent_dist.mean).sample, test).item()
    write_json(folder / "autoencoder.json", {
        "data": images.describe(), "steps": STEPS, "batch": BATCH, "learning_rate": RATE, "kl": KL, "seed": SEED,
        "parameters": sum(p.numel() for p in model.parameters()), "heldout_mse": error, "loss": state.loss})


if __name__ == "__main__":
    run, name = Path(sys.argv[1]).expanduser(), sys.argv[2]
    run.mkdir(parents=True, exist_ok=True)
    data = load_images(name, split="train")
    publish(train(data, run / "checkpoint.safetensors"), data, ROOT / "zoo" / f"{name}-vae")
