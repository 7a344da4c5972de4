"""A trained network in the code of someone else: the U-Net of the digits behind other noise levels, data and calls."""

from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scorelens.networks.architectures import build_network, preset
from scorelens.networks.load import load_network
from scorelens.noise import beta_schedule

LINEAR = beta_schedule()


class DigitsNet(nn.Module):
    """Predicts epsilon; its noise levels, the range of its data and its second argument differ by subclass."""

    levels: ClassVar[Any] = LINEAR
    data: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.unet = build_network("unet", (1, 8, 8), sizes=preset("small", (1, 8, 8)))

    def sigma(self, t: Tensor) -> float:
        return float(self.levels.sigmas[round(float(t[0]))])

    def forward(self, x: Tensor, t: Tensor) -> Any:
        """x = sqrt(a) (unit z + middle), at its own sigma: back to z, and to the timestep of the digits' network."""
        assert t.shape == (len(x),)
        sigma, (low, high) = self.sigma(t), self.data
        unit, middle = (high - low) / 2, (high + low) / 2
        ours = min(max(sigma / unit, LINEAR.range[0]), LINEAR.range[1])
        z = (self.unscaled(x, sigma) - middle) / unit
        time = torch.full((len(x),), LINEAR.time(ours))
        a = LINEAR.scale(ours)  # sqrt(alpha); the network predicts v = sqrt(alpha) eps - sqrt(1 - alpha) x0
        v = self.unet((a * z).to(x.dtype), time).sample
        return self.answer(a * (v + ours * (a * z).to(x.dtype)), z, ours)

    def unscaled(self, x: Tensor, sigma: float) -> Tensor:
        return x / self.levels.scale(sigma)

    def answer(self, eps: Tensor, z: Tensor, sigma: float) -> Any:
        return eps


class ZeroToOne(DigitsNet):
    data = (0.0, 1.0)


class HalfToHalf(DigitsNet):
    data = (-0.5, 0.5)


class Cosine(DigitsNet):
    levels = beta_schedule("squaredcos_cap_v2")


class HundredSteps(DigitsNet):
    """Keeps its schedule with its weights."""

    levels = beta_schedule(steps=100, end=0.2)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas_cumprod", self.levels.alphas.clone())


class Column(DigitsNet):
    def forward(self, x: Tensor, t: Tensor) -> Any:
        if t.shape != (len(x), 1):
            raise ValueError(f"t must be a column, got {list(t.shape)}")
        return super().forward(x, t[:, 0])


class Fraction(DigitsNet):
    def sigma(self, t: Tensor) -> float:
        return super().sigma(1000 * t)


class Table(DigitsNet):
    """Looks its timesteps up, so they must be whole numbers; returns a tuple."""

    def forward(self, x: Tensor, t: Tensor) -> Any:
        return super().forward(x, torch.arange(1000)[t]), None


class OfSigma(DigitsNet):
    """EDM's way: D(z, sigma) returns the denoised image."""

    def sigma(self, t: Tensor) -> float:
        return float(t[0])

    def unscaled(self, x: Tensor, sigma: float) -> Tensor:
        return x

    def answer(self, eps: Tensor, z: Tensor, sigma: float) -> Any:
        return z - sigma * eps


class PredictsX0(DigitsNet):
    def answer(self, eps: Tensor, z: Tensor, sigma: float) -> Any:
        return z - sigma * eps


class Generator(nn.Module):
    """Of a GAN: from a vector to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 64)

    def forward(self, noise: Tensor) -> Tensor:
        return self.fc(noise).view(-1, 1, 8, 8).tanh()


def trained(kind: type[DigitsNet] = DigitsNet) -> DigitsNet:
    """A network of this kind with the weights of digits-unet."""
    net = kind()
    net.unet.load_state_dict(_digits_weights())
    return net.eval().requires_grad_(False)


@lru_cache
def _digits_weights() -> dict[str, Tensor]:
    return load_network("digits-unet")._model.state_dict()  # type: ignore[attr-defined]
