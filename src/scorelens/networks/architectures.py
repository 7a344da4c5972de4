"""Reference networks built from diffusers' classes: the DDPM U-Net without and with self-attention, and a DiT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

if TYPE_CHECKING:
    from torch import nn

Prediction = Literal["epsilon", "x0", "v"]
MIN_SIDE = 4  # of the coarsest level of a U-Net


@dataclass(frozen=True)
class Preset:
    """Network sizes and their training recipe."""

    widths: tuple[int, ...]  # channels of the U-Net's levels, finest first
    blocks: int  # residual blocks per level
    groups: int  # of the group normalization
    attention_side: int  # with attention, levels up to this side have it
    dropout: float
    dit: tuple[int, int, int]  # layers, heads, channels per head
    prediction: Prediction  # what the network is trained to predict
    weighting: float  # the loss of v at each noise level is multiplied by a^weighting
    learning_rate: float
    decay: bool  # cosine decay of the learning rate to zero
    ema: float  # decay of the averaged weights
    epochs: int


def preset(name: str, shape: Shape) -> Preset:
    """The preset `name` for images of this shape."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name](min(shape[1:]))


def _paper(side: int) -> Preset:
    """METHODS.md, "The sampler and the references of the paper": 28x28 has three levels, 32x32 and 64x64 four."""
    widths = (64, 128, 128) if side <= 28 else (128, 256, 384, 512)
    return Preset(widths, blocks=2, groups=32, attention_side=16, dropout=0.15, dit=(12, 6, 64),
                  prediction="epsilon", weighting=0.0, learning_rate=1e-4, decay=False, ema=0.9999, epochs=200)


def _small(side: int) -> Preset:
    """Under 1.5 M parameters (8x8: 0.3 M), for two CPU cores. docs/zoo.md has the measurements behind it."""
    tiny = side <= 8
    return Preset((32, 32) if tiny else (32, 56, 64, 64), blocks=1, groups=8, attention_side=4,
                  dropout=0.05 if tiny else 0.0, dit=(3, 4, 16) if tiny else (5, 4, 24), prediction="v",
                  weighting=0.5, learning_rate=3e-3, decay=True, ema=0.999, epochs=200 if tiny else 15)


PRESETS: dict[str, Callable[[int], Preset]] = {"paper": _paper, "small": _small}


def unet(shape: Shape, sizes: Preset, dropout: float, classes: int | None = None,
         attention: bool = False) -> nn.Module:
    """DDPM's U-Net (Ho et al. 2020), with self-attention at the coarse levels and in the middle block, or nowhere.

    Conditional on `classes`, it has an embedding for each of them and one more for the null class, the last.
    """
    from diffusers import UNet2DModel

    channels, height, width = shape
    widths = sizes.widths[:_levels(shape, len(sizes.widths))]
    attends = [attention and max(height, width) >> level <= sizes.attention_side for level in range(len(widths))]
    return UNet2DModel(
        sample_size=height if height == width else (height, width), in_channels=channels, out_channels=channels,
        block_out_channels=widths, layers_per_block=sizes.blocks, norm_num_groups=sizes.groups, dropout=dropout,
        add_attention=attention, num_class_embeds=None if classes is None else classes + 1,
        down_block_types=tuple("AttnDownBlock2D" if a else "DownBlock2D" for a in attends),
        up_block_types=tuple("AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)))


def dit(shape: Shape, sizes: Preset, dropout: float, classes: int | None = None) -> nn.Module:
    """A diffusion transformer (Peebles & Xie 2023) on 2x2 patches; without classes, it is given the null one."""
    from diffusers import DiTTransformer2DModel

    if shape[1] != shape[2] or shape[1] % 2:
        raise ScorelensError(f"a DiT needs square images of even side, not {shape[1]}x{shape[2]}; "
                             "choose another with --resolution, or --network unet")
    layers, heads, width = sizes.dit
    model = DiTTransformer2DModel(
        sample_size=shape[1], patch_size=2, in_channels=shape[0], out_channels=shape[0], num_layers=layers,
        num_attention_heads=heads, attention_head_dim=width, dropout=dropout,
        num_embeds_ada_norm=classes or 1)
    for block in model.transformer_blocks:  # labels are dropped by the training, the same for all blocks
        block.norm1.emb.class_embedder.dropout_prob = 0.0
    return model


ARCHITECTURES: dict[str, Callable[[Shape, Preset, float, int | None], nn.Module]] = {
    "unet": unet, "unet-attention": partial(unet, attention=True), "dit": dit}


def build_network(name: str, shape: Shape, *, sizes: Preset, dropout: float | None = None,
                  classes: int | None = None) -> nn.Module:
    """A newly initialized network for images of this shape, an instance of a diffusers class.

    With `classes` it is conditional on a class: 0 ... classes - 1, or the null class `classes`.
    """
    if name not in ARCHITECTURES:
        raise unknown("network", name, ARCHITECTURES)
    require_diffusers()
    return ARCHITECTURES[name](shape, sizes, sizes.dropout if dropout is None else dropout, classes)


def require_diffusers() -> None:
    try:
        import diffusers  # noqa: F401
    except ImportError as error:
        raise ScorelensError("networks need the package diffusers: pip install diffusers") from error


def _levels(shape: Shape, most: int) -> int:
    """Number of U-Net levels: each halves the sides, which must stay integers of at least 4 pixels."""
    level = 1
    while level < most and all(side % 2 ** level == 0 and side >> level >= MIN_SIDE for side in shape[1:]):
        level += 1
    return level
