"""Reference networks, built from diffusers' own classes: the DDPM U-Net without and with self-attention, and a DiT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

if TYPE_CHECKING:
    from torch import nn

Prediction = Literal["epsilon", "x0", "v"]
SMALLEST = 4  # side of the coarsest level of a U-Net


@dataclass(frozen=True)
class Preset:
    """Sizes and recipe that belong together. `widths` are the channels of the U-Net's levels, finest first."""

    widths: tuple[int, ...]
    blocks: int  # residual blocks per level
    groups: int  # of the group normalization
    attention_side: int  # levels of at most this side attend, where attention is asked for
    dropout: float
    dit: tuple[int, int, int]  # layers, heads, channels per head
    prediction: Prediction  # what the network is trained to predict
    weighting: float  # of the loss of v over noise levels: a^weighting
    learning_rate: float
    decay: bool  # of the learning rate, to zero along a half cosine
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
    """Under 1.5 M parameters (8x8: 0.3 M), for two CPU cores. The recipe was found by measurement: docs/zoo.md."""
    tiny = side <= 8
    return Preset((32, 32) if tiny else (32, 56, 64, 64), blocks=1, groups=8, attention_side=4,
                  dropout=0.05 if tiny else 0.0, dit=(3, 4, 16) if tiny else (5, 4, 24), prediction="v",
                  weighting=0.5, learning_rate=3e-3, decay=True, ema=0.999, epochs=200 if tiny else 15)


PRESETS: dict[str, Callable[[int], Preset]] = {"paper": _paper, "small": _small}


def unet(shape: Shape, sizes: Preset, dropout: float, attention: bool = False) -> nn.Module:
    """DDPM's U-Net (Ho et al. 2020). Without attention it has none at all: diffusers' middle block is told so too."""
    from diffusers import UNet2DModel

    widths = sizes.widths[:_levels(shape, len(sizes.widths))]
    attends = [attention and max(shape[1:]) >> level <= sizes.attention_side for level in range(len(widths))]
    return UNet2DModel(
        sample_size=_size(shape), in_channels=shape[0], out_channels=shape[0], block_out_channels=widths,
        layers_per_block=sizes.blocks, norm_num_groups=sizes.groups, dropout=dropout, add_attention=attention,
        down_block_types=tuple("AttnDownBlock2D" if a else "DownBlock2D" for a in attends),
        up_block_types=tuple("AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)))


def unet_attention(shape: Shape, sizes: Preset, dropout: float) -> nn.Module:
    """The same U-Net with self-attention at its coarse levels and in its middle."""
    return unet(shape, sizes, dropout, attention=True)


def dit(shape: Shape, sizes: Preset, dropout: float) -> nn.Module:
    """A diffusion transformer (Peebles & Xie 2023) on 2x2 patches, without classes: it knows the null class alone."""
    from diffusers import DiTTransformer2DModel

    if shape[1] != shape[2] or shape[1] % 2:
        raise ScorelensError(f"a DiT takes square images of even side, not {shape[1]}x{shape[2]}; "
                             "choose another with --resolution, or --network unet")
    layers, heads, width = sizes.dit
    return DiTTransformer2DModel(
        sample_size=shape[1], patch_size=2, in_channels=shape[0], out_channels=shape[0], num_layers=layers,
        num_attention_heads=heads, attention_head_dim=width, dropout=dropout, num_embeds_ada_norm=1)


ARCHITECTURES: dict[str, Callable[[Shape, Preset, float], nn.Module]] = {
    "unet": unet,
    "unet-attention": unet_attention,
    "dit": dit,
}


def build_network(name: str, shape: Shape, *, sizes: Preset, dropout: float | None = None) -> nn.Module:
    """A freshly initialized network for images of this shape; diffusers' class, so that it saves as diffusers does."""
    if name not in ARCHITECTURES:
        raise unknown("network", name, ARCHITECTURES)
    require_diffusers()
    return ARCHITECTURES[name](shape, sizes, sizes.dropout if dropout is None else dropout)


def call_options(model: nn.Module) -> dict[str, Any]:
    """What a model of ours is called with beside x_t and t: a DiT wants a class, and gets the null class."""
    config: Any = model.config
    return {"class_labels": config.num_embeds_ada_norm} if "num_embeds_ada_norm" in config else {}


def require_diffusers() -> None:
    try:
        import diffusers  # noqa: F401
    except ImportError as error:
        raise ScorelensError("networks need the package diffusers: pip install diffusers") from error


def _levels(shape: Shape, most: int) -> int:
    """How many levels the U-Net has: each halves the image, which must stay whole and at least 4 pixels wide."""
    level = 1
    while level < most and all(side % 2 ** level == 0 and side >> level >= SMALLEST for side in shape[1:]):
        level += 1
    return level


def _size(shape: Shape) -> int | tuple[int, int]:
    return shape[1] if shape[1] == shape[2] else (shape[1], shape[2])
