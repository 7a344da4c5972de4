"""The numbers that the paper reports (Lukoianov et al., NeurIPS 2025), by dataset and method.

Its CelebA-HQ and AFHQv2 are at 64 x 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from scorelens.paper.presets import ANOTHER_SEED, ENERGIES, THRESHOLDS

K = TypeVar("K")
Value = tuple[float, float]  # mean and standard deviation over samples
_ORDER = ("optimal", "wiener", "els", "locality", ANOTHER_SEED)


def means(table: Mapping[str, Mapping[K, Value]]) -> dict[str, dict[K, float]]:
    """The table without the second number of each pair."""
    return {dataset: {key: value[0] for key, value in values.items()} for dataset, values in table.items()}


def _column(*values: Value) -> dict[str, Value]:
    return dict(zip(_ORDER, values, strict=True))


PAPER_R2: dict[str, dict[str, Value]] = {
    "cifar10": _column((-0.549, 0.774), (0.408, 0.092), (0.303, 0.126), (0.589, 0.078), (0.852, 0.113)),
    "celeba": _column((0.400, 0.298), (0.818, 0.039), (0.831, 0.073), (0.902, 0.032), (0.981, 0.007)),
    "mnist": _column((0.187, 0.204), (0.469, 0.066), (0.402, 0.092), (0.491, 0.051), (0.969, 0.082)),
    "afhq-cats": _column((-1.239, 0.371), (0.601, 0.072), (0.429, 0.081), (0.759, 0.026), (0.928, 0.019)),
    "fashion-mnist": _column((-0.137, 0.344), (0.449, 0.068), (0.342, 0.183), (0.523, 0.042), (0.950, 0.020)),
}
PAPER_MSE: dict[str, dict[str, Value]] = {
    "cifar10": _column((0.191, 0.044), (0.032, 0.004), (0.065, 0.017), (0.028, 0.008), (0.023, 0.002)),
    "celeba": _column((0.101, 0.023), (0.031, 0.004), (0.028, 0.005), (0.016, 0.006), (0.004, 0.001)),
    "mnist": _column((0.231, 0.036), (0.161, 0.014), (0.188, 0.039), (0.153, 0.015), (0.007, 0.019)),
    "afhq-cats": _column((0.180, 0.023), (0.025, 0.003), (0.041, 0.006), (0.019, 0.004), (0.050, 0.001)),
    "fashion-mnist": _column((0.254, 0.077), (0.137, 0.018), (0.186, 0.019), (0.125, 0.011), (0.015, 0.005)),
}
PAPER_NOVELTY: dict[str, dict[str, Value]] = {
    "cifar10": _column((0.000, 0.000), (0.091, 0.006), (0.094, 0.005), (0.040, 0.005), (0.079, 0.014)),
    "celeba": _column((0.000, 0.000), (0.104, 0.006), (0.089, 0.006), (0.063, 0.004), (0.087, 0.010)),
    "afhq-cats": _column((0.000, 0.000), (0.112, 0.005), (0.136, 0.007), (0.063, 0.004), (0.095, 0.013)),
    "mnist": _column((0.000, 0.000), (0.177, 0.015), (0.355, 0.061), (0.204, 0.023), (0.103, 0.023)),
    "fashion-mnist": _column((0.000, 0.000), (0.133, 0.013), (0.218, 0.032), (0.131, 0.027), (0.067, 0.015)),
}
PAPER_SECONDS: dict[str, dict[str, float]] = {  # of one sample of ten steps, on a GPU
    name: dict(zip(_ORDER, values, strict=True)) for name, values in {
        "cifar10": (7.90, 0.11, 44.44, 21.25, 0.57), "celeba": (18.90, 3.10, 349.68, 70.23, 0.65),
        "afhq-cats": (10.01, 3.08, 181.08, 314.55, 0.65), "mnist": (0.63, 0.07, 4.40, 22.39, 0.61),
        "fashion-mnist": (0.64, 0.07, 4.49, 22.97, 0.63)}.items()}
PAPER_THRESHOLD: dict[str, dict[float, Value]] = {  # r2 and MSE
    name: dict(zip(THRESHOLDS, values, strict=True)) for name, values in {
        "cifar10": ((0.396, 0.059), (0.520, 0.046), (0.672, 0.031), (0.773, 0.021), (0.771, 0.022), (0.737, 0.026),
                    (0.641, 0.036)),
        "celeba": ((0.786, 0.038), (0.865, 0.023), (0.897, 0.017), (0.894, 0.017), (0.879, 0.020), (0.852, 0.024),
                   (0.799, 0.033)),
        "mnist": ((0.492, 0.151), (0.441, 0.165), (0.418, 0.176), (0.214, 0.255), (0.214, 0.255), (0.214, 0.255),
                  (0.214, 0.255)),
        "fashion-mnist": ((0.563, 0.115), (0.517, 0.122), (0.406, 0.144), (0.072, 0.211), (-0.192, 0.264),
                          (-0.407, 0.311), (-0.209, 0.270))}.items()}
PAPER_LOW_RANK: dict[str, dict[str, dict[float, float]]] = {  # r2, by method and dataset
    method: {name: dict(zip(ENERGIES, values, strict=True)) for name, values in by_dataset.items()}
    for method, by_dataset in {
        "locality": {
            "cifar10": (0.773, 0.501, 0.312, 0.245, 0.176, 0.176, 0.192, 0.194, 0.200, -0.248),
            "celeba": (0.897, 0.759, 0.702, 0.695, 0.685, 0.668, 0.652, 0.650, 0.607, 0.607),
            "mnist": (0.492, 0.197, 0.156, 0.158, 0.351, 0.341, 0.361, 0.384, 0.389, 0.368)},
        "wiener": {
            "cifar10": (0.674, 0.677, 0.661, 0.649, 0.538, 0.460, 0.223, 0.168, 0.127, -0.048),
            "celeba": (0.818, 0.817, 0.805, 0.797, 0.766, 0.739, 0.649, 0.625, 0.548, 0.548),
            "mnist": (0.469, 0.468, 0.468, 0.467, 0.453, 0.445, 0.421, 0.394, 0.353, 0.292)}}.items()}
PAPER_FID = {"without self-attention": 6.04, "with self-attention": 4.12}
