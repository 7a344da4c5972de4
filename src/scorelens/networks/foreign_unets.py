"""DDPM U-Nets of two public repositories as diffusers' UNet2DModel, by renaming their weights.

"pytorch-ddpm" (w86763777, zoubohao; the paper's reference networks use the same code) numbers its blocks through, and
stores the sinusoids of its timesteps as a table, sine and cosine in turn. "ddpm-torch" (tqch) names its levels, pads
only below and right before it halves the sides, and projects query, key and value with one convolution.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scorelens.types import ScorelensError

Tensors = Mapping[str, Tensor]
TABLE = "time_embedding.timembedding.0.weight"
PYTORCH_DDPM = {  # names within a block or outside of all, after the blocks have their new names
    r"^head\.": "conv_in.", r"^tail\.0\.": "conv_norm_out.", r"^tail\.2\.": "conv_out.",
    r"^time_embedding\.timembedding\.1\.": "time_embedding.linear_1.",
    r"^time_embedding\.timembedding\.3\.": "time_embedding.linear_2.",
    r"\.main\.": ".conv.", r"\.block1\.0\.": ".norm1.", r"\.block1\.2\.": ".conv1.", r"\.block2\.0\.": ".norm2.",
    r"\.block2\.3\.": ".conv2.", r"\.temb_proj\.1\.": ".time_emb_proj.", r"\.shortcut\.": ".conv_shortcut.",
    r"resnets\.(\d+)\.attn\.": r"attentions.\1.", r"\.proj_([qkv])\.": r".to_\1.", r"\.proj\.": ".to_out.0."}
DDPM_TORCH = {
    r"^in_conv\.": "conv_in.", r"^out_conv\.0\.": "conv_norm_out.", r"^out_conv\.2\.": "conv_out.",
    r"^embed\.0\.": "time_embedding.linear_1.", r"^embed\.2\.": "time_embedding.linear_2.",
    r"^middle\.1\.": "mid_block.attentions.0.", r"^middle\.0\.": "mid_block.resnets.0.",
    r"^middle\.2\.": "mid_block.resnets.1.",
    r"^(down|up)samples\.(\d+)\.\d+\.1\.(weight|bias)$": r"\1_blocks.\2.\1samplers.0.conv.\3",
    r"^(down|up)samples\.(\d+)\.(\d+)\.1\.": r"\1_blocks.\2.attentions.\3.",
    r"^(down|up)samples\.(\d+)\.(\d+)\.(0\.)?": r"\1_blocks.\2.resnets.\3.",
    r"\.fc\.": ".time_emb_proj.", r"\.skip\.": ".conv_shortcut.", r"\.norm\.": ".group_norm.",
    r"\.project_out\.": ".to_out.0."}


@dataclass(frozen=True)
class Family:
    """The repository of a U-Net: how its weights are renamed, and the settings of UNet2DModel that they do not show."""

    name: str
    marker: str  # a weight that only its files have
    prepare: Callable[[Tensors], Iterator[tuple[str, Tensor]]]  # split, join or reorder; renames the blocks
    renames: Mapping[str, str]
    settings: Mapping[str, Any]


def is_foreign_unet(tensors: Tensors) -> bool:
    """Whether these are the weights of a U-Net of a repository in FAMILIES."""
    return any(family.marker in tensors for family in FAMILIES)


def build_foreign_unet(tensors: Tensors, size: int | None = None) -> nn.Module:
    """A UNet2DModel with these weights, which determine all of its settings but the size of its images."""
    from diffusers import UNet2DModel

    family = next(family for family in FAMILIES if family.marker in tensors)
    renamed = {_rename(name, family.renames): value for name, value in family.prepare(tensors)}
    weights = {name: _convert(name, value) for name, value in renamed.items()}
    try:
        with torch.device("meta"):  # no time for random weights
            model = UNet2DModel(sample_size=size, **_settings(weights), **family.settings)
        expected = {name: value.shape for name, value in model.state_dict().items()}
        found = {name: value.shape for name, value in weights.items()}
        wrong = sorted(name for name in {**expected, **found} if expected.get(name) != found.get(name))
    except (KeyError, ValueError) as error:
        raise ScorelensError(f"the weights are not those of a U-Net of {family.name}: {error} is missing") from error
    if wrong:
        raise ScorelensError(f"the weights are not those of a U-Net of {family.name}: {len(wrong)} of them are "
                             f"missing, unexpected or of another shape, e.g. {wrong[0]} (diffusers' name)")
    model.load_state_dict(weights, assign=True)
    return model.float().eval()


def _settings(weights: Tensors) -> dict[str, Any]:
    """The settings of UNet2DModel that its weights show."""
    levels = range(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("down_blocks.")))
    attends = [any(name.startswith(f"down_blocks.{level}.attentions.") for name in weights) for level in levels]
    blocks = {name.split(".")[3] for name in weights if name.startswith("down_blocks.0.resnets.")}
    return {"in_channels": weights["conv_in.weight"].shape[1], "out_channels": len(weights["conv_out.bias"]),
            "block_out_channels": tuple(len(weights[f"down_blocks.{k}.resnets.0.conv1.bias"]) for k in levels),
            "layers_per_block": len(blocks), "attention_head_dim": None,  # None: one head
            "add_attention": "mid_block.attentions.0.to_q.weight" in weights,
            "down_block_types": tuple("AttnDownBlock2D" if each else "DownBlock2D" for each in attends),
            "up_block_types": tuple("AttnUpBlock2D" if each else "UpBlock2D" for each in reversed(attends))}


def _rename(name: str, renames: Mapping[str, str]) -> str:
    for pattern, replacement in renames.items():
        name = re.sub(pattern, replacement, name)
    return name


def _convert(name: str, value: Tensor) -> Tensor:
    """The 1x1 convolutions of an attention block as linear layers."""
    return value.flatten(1) if ".attentions." in name and value.ndim == 4 else value


def _pytorch_ddpm(tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Blocks by level; the first layer of the time embedding for diffusers' order, all sines before all cosines."""
    table = tensors[TABLE]
    if not torch.allclose(table.double(), _sinusoids(*table.shape), atol=1e-3):
        raise ScorelensError("the time embedding of this network was trained: it cannot take noise levels between its "
                             "timesteps; load it with module= and its own class")
    places = {"middleblocks.0": "mid_block.resnets.0", "middleblocks.1": "mid_block.resnets.1",
              **dict(_levels(tensors, "down")), **dict(_levels(tensors, "up"))}
    for name, value in tensors.items():
        if name == "time_embedding.timembedding.1.weight":
            value = torch.cat([value[:, 0::2], value[:, 1::2]], dim=1)
        block = ".".join(name.split(".")[:2])
        if name != TABLE:
            yield name.replace(block, places[block], 1) if block in places else name, value


def _levels(tensors: Tensors, side: str) -> Iterator[tuple[str, str]]:
    """The new names of `downblocks.k` or `upblocks.k`; each level but the last ends with a change of resolution."""
    level = block = 0
    numbers = {int(name.split(".")[1]) for name in tensors if name.startswith(f"{side}blocks.")}
    for k in sorted(numbers):
        resampling = f"{side}blocks.{k}.main.weight" in tensors
        yield f"{side}blocks.{k}", f"{side}_blocks.{level}.{f'{side}samplers.0' if resampling else f'resnets.{block}'}"
        level, block = (level + 1, 0) if resampling else (level, block + 1)


def _sinusoids(steps: int, width: int) -> Float[Tensor, "{steps} {width}"]:
    """sin and cos, in turn, of t 10000^(-2k / width)."""
    angle = torch.arange(steps, dtype=torch.float64)[:, None] * torch.exp(
        -math.log(10000) * torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


def _ddpm_torch(tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Levels of the way up counted from the coarsest; query, key and value apart."""
    last = max(int(found[1]) for name in tensors if (found := re.match(r"upsamples\.level_(\d+)\.", name)))
    for name, value in tensors.items():
        name = re.sub(r"^downsamples\.level_", "downsamples.", name)
        name = re.sub(r"^upsamples\.level_(\d+)", lambda found: f"upsamples.{last - int(found[1])}", name)
        if ".project_in." in name:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                yield name.replace(".project_in.", f".to_{part}."), piece
        else:
            yield name, value


FAMILIES = (
    Family("pytorch-ddpm", TABLE, _pytorch_ddpm, PYTORCH_DDPM, {"flip_sin_to_cos": False, "freq_shift": 0}),
    Family("ddpm-torch", "middle.1.project_in.weight", _ddpm_torch, DDPM_TORCH,
           {"flip_sin_to_cos": False, "freq_shift": 1, "downsample_padding": 0}))
