"""TRAK (Park et al. 2023) on the small networks: influences of training images, from the projected gradients of dattri.

Needs `pip install --no-deps dattri` (measured with 0.3.0): this part of it needs nothing but torch. Its TRAKAttributor
gives the same numbers, but keeps no gradients, and so would compute them again for each ridge.
"""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from scorelens import seeded_noise
from tools.attribution_networks import Member, Study, loss_weight, noise_levels, noisy, trained

NETWORKS = 5  # trained on all images
PROJECTED = 512
RIDGES = (0.001, 0.01, 0.1, 1.0, 10.0)  # in units of the mean eigenvalue of the kernel of the projected gradients
TRAINING_DRAWS, BATCH = 32, 1000  # noisy images behind the gradient of a training image; images of a batch


def trak_scores(runs: Path, study: Study, x0: Tensor) -> dict[float, Tensor]:
    """The influence [images, N] of each training image on the loss of each image, for each ridge.

    The mean over the networks of g (X^T X + ridge)^-1 X^T, with X the projected gradients of the training loss on the
    training images, averaged over random noise levels, and g those of the loss that is measured. Regression has no
    probability of the correct class, so TRAK's factor 1 - p is 1.
    """
    networks = trained(study, [np.arange(len(study.images))] * NETWORKS, 2, runs / study.data / "gradients.safetensors")
    scores = dict.fromkeys(RIDGES, torch.zeros(len(x0), len(study.images), dtype=torch.float64))
    for k, network in enumerate(networks):
        path = runs / study.data / f"gradients-{k}.pt"
        if not path.exists():
            torch.save(projected_gradients(network, _training(study), k), path)
        x, g = torch.load(path).double(), projected_gradients(network, _measured(x0), k).double()
        values, vectors = torch.linalg.eigh(x.T @ x)
        left, right = g @ vectors, vectors.T @ x.T
        for ridge in RIDGES:
            scores[ridge] = scores[ridge] + left / (values + ridge * values.mean()) @ right / NETWORKS
    return scores


def projected_gradients(network: Member, batches: DataLoader[Any], seed: int) -> Tensor:
    """The gradient of the loss of each image with respect to all parameters, projected: [images, PROJECTED]."""
    task, options = _task(network), {"proj_dim": PROJECTED, "proj_max_batch_size": 32}
    gradient, (parameters, _) = task.get_grad_loss_func(in_dims=(None, 0)), task.get_param(ckpt_idx=0)
    found = []
    for batch in batches:
        each = gradient(parameters, tuple(batch)).detach() / math.sqrt(len(parameters))
        found.append(_dattri("func.projection").random_project(each, len(each), **options)(each, ensemble_id=seed))
    return torch.cat(found)


def _task(network: Member) -> Any:
    model = network.alone()

    def loss(params: dict[str, Tensor], data: tuple[Tensor, ...]) -> Tensor:
        z, sigma, weight, clean = data  # [draws, D], [draws], [draws], [D]
        x0_hat = torch.func.functional_call(model, params, (z[None], sigma[None]))[0]
        return ((x0_hat - clean).square().mean(dim=1) * weight).mean()

    return _dattri("task").AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())


def _dattri(module: str) -> Any:
    try:
        return importlib.import_module(f"dattri.{module}")
    except ImportError:
        sys.exit("the gradient method needs dattri: pip install --no-deps dattri")


def _training(study: Study) -> DataLoader[Any]:
    """The training images at random noise levels, with the weights of the training loss."""
    clean, generator = study.images[:].flatten(1), torch.Generator().manual_seed(0)
    sigma = noise_levels(torch.rand(len(clean), TRAINING_DRAWS, generator=generator))
    noise = seeded_noise((TRAINING_DRAWS, clean.shape[1], 1), range(len(clean)))[..., 0]
    return DataLoader(TensorDataset(clean[:, None] + sigma[:, :, None] * noise, sigma, loss_weight(sigma), clean),
                      batch_size=BATCH)


def _measured(x0: Tensor) -> DataLoader[Any]:
    """The images as their losses are measured."""
    several = [(z.flatten(1), torch.full((len(x0),), sigma)) for z, sigma in noisy(x0)]
    z, sigma = (torch.stack(each, dim=1) for each in zip(*several, strict=True))
    return DataLoader(TensorDataset(z, sigma, torch.ones_like(sigma), x0.flatten(1)), batch_size=BATCH)
