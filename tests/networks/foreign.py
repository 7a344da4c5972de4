"""The U-Nets of two public repositories, as functions of their weights, written from their descriptions.

`Weights` is a dictionary that draws a weight when it is first asked for, so that one forward pass with it also lists
the names and shapes of a checkpoint.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Weights(dict):
    """Random weights of a size that keeps activations near 1, drawn on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def get(self, name: str, *shape: int) -> Tensor:
        if name not in self:
            spread = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.3
            centre = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0  # the factor of a normalization
            self[name] = centre + spread * torch.randn(shape, generator=self.generator)
        assert tuple(self[name].shape) == shape, name
        return self[name]

    def conv(self, name: str, x: Tensor, out: int, kernel: int = 3, **options: int) -> Tensor:
        return F.conv2d(x, self.get(f"{name}.weight", out, x.shape[1], kernel, kernel), self.get(f"{name}.bias", out),
                        **options)

    def linear(self, name: str, x: Tensor, out: int) -> Tensor:
        return F.linear(x, self.get(f"{name}.weight", out, x.shape[1]), self.get(f"{name}.bias", out))

    def norm(self, name: str, x: Tensor) -> Tensor:
        c = x.shape[1]
        return F.group_norm(x, 32, self.get(f"{name}.weight", c), self.get(f"{name}.bias", c))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over all pixels of q^T k / sqrt(C), applied to v; [B, C, H, W]."""
    scores = torch.einsum("bci,bcj->bij", q.flatten(2), k.flatten(2)) / math.sqrt(q.shape[1])
    return torch.einsum("bij,bcj->bci", scores.softmax(dim=2), v.flatten(2)).view_as(v)


def pytorch_ddpm(w: Weights, x: Tensor, t: Tensor, width: int, multipliers: Sequence[int], blocks: int = 2,
                 attention: Sequence[int] = (), steps: int = 1000) -> Tensor:
    """eps of the U-Net of pytorch-ddpm: blocks numbered through, a table of time embeddings, padding on all sides."""
    c = x.shape[1]
    if "time_embedding.timembedding.0.weight" not in w:
        rates = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
        angles = torch.arange(steps).double()[:, None] * rates
        table = torch.empty(steps, width, dtype=torch.float64)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        w["time_embedding.timembedding.0.weight"] = table.float()
    emb = w["time_embedding.timembedding.0.weight"][t].to(x)
    emb = w.linear("time_embedding.timembedding.1", emb, 4 * width)
    emb = w.linear("time_embedding.timembedding.3", F.silu(emb), 4 * width)

    def residual(name: str, h: Tensor, out: int, attends: bool = False) -> Tensor:
        y = w.conv(f"{name}.block1.2", F.silu(w.norm(f"{name}.block1.0", h)), out, padding=1)
        y = y + w.linear(f"{name}.temb_proj.1", F.silu(emb), out)[:, :, None, None]
        y = w.conv(f"{name}.block2.3", F.silu(w.norm(f"{name}.block2.0", y)), out, padding=1)
        y = y + (h if h.shape[1] == out else w.conv(f"{name}.shortcut", h, out, 1))
        if attends:
            normed = w.norm(f"{name}.attn.group_norm", y)
            q, k, v = (w.conv(f"{name}.attn.proj_{part}", normed, out, 1) for part in "qkv")
            y = y + w.conv(f"{name}.attn.proj", attend(q, k, v), out, 1)
        return y

    h = w.conv("head", x, width, padding=1)
    skips, number = [h], 0
    for level, multiplier in enumerate(multipliers):
        for _ in range(blocks):
            h = residual(f"downblocks.{number}", h, multiplier * width, level in attention)
            skips.append(h)
            number += 1
        if level < len(multipliers) - 1:
            h = w.conv(f"downblocks.{number}.main", h, h.shape[1], stride=2, padding=1)
            skips.append(h)
            number += 1
    h = residual("middleblocks.0", h, h.shape[1], attends=True)
    h = residual("middleblocks.1", h, h.shape[1])
    number = 0
    for level in reversed(range(len(multipliers))):
        for _ in range(blocks + 1):
            h = residual(f"upblocks.{number}", torch.cat([h, skips.pop()], 1), multipliers[level] * width,
                         level in attention)
            number += 1
        if level:
            h = w.conv(f"upblocks.{number}.main", F.interpolate(h, scale_factor=2.0), h.shape[1], padding=1)
            number += 1
    return w.conv("tail.2", F.silu(w.norm("tail.0", h)), c, padding=1)


def ddpm_torch(w: Weights, x: Tensor, t: Tensor, width: int, multipliers: Sequence[int], blocks: int = 2,
               attention: Sequence[int] = ()) -> Tensor:
    """eps of the U-Net of ddpm-torch: levels by name, DDPM's own time embedding, padding below and right."""
    c, half = x.shape[1], width // 2
    angles = t.double()[:, None] * 10000.0 ** (-torch.arange(half).double() / (half - 1))
    emb = torch.cat([angles.sin(), angles.cos()], 1).to(x)
    emb = w.linear("embed.2", F.silu(w.linear("embed.0", emb, 4 * width)), 4 * width)

    def attention_block(name: str, h: Tensor) -> Tensor:
        q, k, v = w.conv(f"{name}.project_in", w.norm(f"{name}.norm", h), 3 * h.shape[1], 1).chunk(3, 1)
        return h + w.conv(f"{name}.project_out", attend(q, k, v), h.shape[1], 1)

    def residual(name: str, h: Tensor, out: int) -> Tensor:
        y = w.conv(f"{name}.conv1", F.silu(w.norm(f"{name}.norm1", h)), out, padding=1)
        y = y + w.linear(f"{name}.fc", F.silu(emb), out)[:, :, None, None]
        y = w.conv(f"{name}.conv2", F.silu(w.norm(f"{name}.norm2", y)), out, padding=1)
        return y + (h if h.shape[1] == out else w.conv(f"{name}.skip", h, out, 1))

    def block(name: str, h: Tensor, level: int) -> Tensor:
        out = multipliers[level] * width
        if level in attention:
            return attention_block(f"{name}.1", residual(f"{name}.0", h, out))
        return residual(name, h, out)

    h = w.conv("in_conv", x, width, padding=1)
    skips, last = [h], len(multipliers) - 1
    for level in range(last + 1):
        for j in range(blocks):
            h = block(f"downsamples.level_{level}.{j}", h, level)
            skips.append(h)
        if level < last:
            h = w.conv(f"downsamples.level_{level}.{blocks}.1", F.pad(h, (0, 1, 0, 1)), h.shape[1], stride=2)
            skips.append(h)
    h = residual("middle.0", h, h.shape[1])
    h = residual("middle.2", attention_block("middle.1", h), h.shape[1])
    for level in reversed(range(last + 1)):
        for j in range(blocks + 1):
            h = block(f"upsamples.level_{level}.{j}", torch.cat([h, skips.pop()], 1), level)
        if level:
            up = F.interpolate(h, scale_factor=2.0)
            h = w.conv(f"upsamples.level_{level}.{blocks + 1}.1", up, h.shape[1], padding=1)
    return w.conv("out_conv.2", F.silu(w.norm("out_conv.0", h)), c, padding=1)
