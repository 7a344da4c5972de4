"""The paper's tables and figures as data: what is measured on which dataset, beside the numbers the paper reports.

A preset is a set of cells. A cell is one method on one dataset; presets that need the same cell share it, so that the
table, the novelty and the dynamics of a method are three views of one measurement. Nothing here runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scorelens.validation import unknown

Kind = Literal["samples", "within", "voids", "fields", "marks", "quality"]
Data = tuple[str, tuple[tuple[str, Any], ...]]  # a source, and options of load_images
Value = tuple[float, float]  # mean and standard deviation over samples


@dataclass(frozen=True)
class Dataset:
    """What a benchmark loads, and the options that methods take on it."""

    threshold: float  # of locality: the paper's best of its ablation; on data it lacks, ours
    patch_size: str  # of els: the paper's preset, or sizes that `scorelens calibrate` found
    options: Mapping[str, Any] = field(default_factory=dict)  # of load_images
    paper: str = ""  # what the paper calls it; ours may be another edition of it
    large: bool = False  # too much for els, and for ablations, on a CPU without a limit
    at_paper_scale: tuple[str, Mapping[str, Any]] | None = None  # another source, other options
    chosen: float | None = None  # the best threshold of our own ablation, which has other noise than the tables


SIDE_32, SIDE_64 = {"resolution": 32}, {"resolution": 64}
DATASETS = {
    "digits": Dataset(0.05, "15-15-15-15-15-15-15-15-3-1", {"split": "train"}),
    "leaves": Dataset(0.05, "cifar10", large=True, chosen=0.02),
    "mnist": Dataset(0.005, "mnist", paper="MNIST", large=True, chosen=0.05),
    "fashion-mnist": Dataset(0.005, "fashion-mnist", paper="Fashion-MNIST", large=True, chosen=0.07),
    "cifar10": Dataset(0.05, "cifar10", paper="CIFAR-10", large=True),
    "celeba": Dataset(0.02, "celeba-hq", SIDE_32, "CelebA-HQ", True, ("celeba-hq", SIDE_64), 0.05),
    "afhq-cats": Dataset(0.02, "afhqv2", SIDE_32, "AFHQv2", True, ("afhqv2", SIDE_64), 0.07),
}
EVERY, MAIN = tuple(DATASETS), ("cifar10", "celeba", "mnist")
APPENDIX = ("afhq-cats", "fashion-mnist")


@dataclass(frozen=True)
class Scale:
    """How much is computed: `paper` is for GPUs, `cpu` for two cores."""

    tables: int = 128  # samples
    runtime: int = 64
    ablations: int = 128
    low_rank: int = 16
    voids: int = 128
    fields: int = 32
    quality: int = 1000
    els: int = 128
    els_runtime: int = 64
    els_images: int | None = None  # of the source
    ablation_images: int | None = None


SCALES = {
    "paper": Scale(),
    "cpu": Scale(runtime=8, ablations=32, voids=32, fields=8, quality=256, els=16, els_runtime=1,
                 els_images=1000, ablation_images=10_000),
}

ANOTHER_SEED = "another seed"  # of the reference, trained alike
THRESHOLDS = (0.005, 0.01, 0.02, 0.05, 0.07, 0.1, 0.15)
ENERGIES = (0.0, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5)
SOFTMAX_BATCHES = (64, 256, 512, 1024, 4096)
TOLERANCES = (0.1, 0.03, 0.01, 0.003)
TABLE = ("optimal", "wiener", "els:patch_size={patch_size}", "locality:threshold={threshold}",
         "locality:threshold={threshold},softmax=batch-mean",
         "locality:threshold={threshold},mask_rule=published,softmax=batch-mean", "locality:threshold={chosen}",
         "kernel", ANOTHER_SEED)


@dataclass(frozen=True)
class Preset:
    """A table or figure: its cells, its name in the paper, and the question it answers."""

    title: str
    question: str
    paper: str  # where the paper has it, and under which label; empty for ours
    datasets: Sequence[str]
    methods: Sequence[str]  # denoisers with options, or networks: {reference}, or of the zoo
    kind: Kind = "samples"
    num: str = "tables"  # which number of the scale
    limited: bool = False  # to the scale's `ablation_images`, on large datasets
    seed: int = 128


PRESETS = {
    "table1": Preset("How well each formula predicts a trained network",
                     "Which closed-form denoiser comes closest to the samples of a trained network?",
                     "Table 1 (tab:metrics-comparison)", ("digits", "leaves", *MAIN), TABLE),
    "table-appendix": Preset("The same on two more datasets", "Does the order hold on other data?",
                             "appendix (tab:metrics-comparison-2)", APPENDIX, TABLE),
    "novelty": Preset("Distance to the training data", "Do the methods make new images, or repeat the data?",
                      "appendix (tab:l2-distance-comparison, fig:l2_distance_to_the_dataset)", EVERY, TABLE),
    "runtime": Preset("Time of a sample", "What does each method cost?", "appendix (tab:runtime-comparison)", EVERY,
                      TABLE, num="runtime"),
    "dynamics": Preset("Along the trajectory", "At which noise levels do the predictions part?",
                       "appendix (fig:metrics_trajectory_mse, fig:generative_trajectory)", EVERY, TABLE),
    "threshold": Preset("The threshold of locality", "How large should the masks be?",
                        "appendix (tab:ablation-metrics)", EVERY,
                        tuple(f"locality:threshold={t}" for t in THRESHOLDS), num="ablations", limited=True,
                        seed=0),
    "low-rank": Preset("Covariances of low rank", "Is it enough to keep the leading components?",
                       "appendix (tab:energy-cutoff-ablation)", ("digits", "leaves", *MAIN),
                       ("locality:threshold={threshold}",
                        *(f"locality:threshold={{threshold}},energy={e}" for e in ENERGIES[1:]),
                        "wiener", *(f"wiener:energy={e}" for e in ENERGIES[1:])), num="low_rank", limited=True),
    "softmax": Preset("The softmax of the published code", "What does it cost to average the softmaxes of batches?", "",
                      ("digits", "leaves", "mnist"),
                      ("locality:threshold={threshold}",
                       *(f"locality:threshold={{threshold}},softmax=batch-mean,softmax_batch={b}"
                         for b in SOFTMAX_BATCHES)), num="ablations", limited=True),
    "tolerance": Preset("Within a tolerance", "What is lost, and what is gained, where a few images speak for all?", "",
                        ("digits", "leaves", "mnist", "cifar10"),
                        ("locality:threshold={threshold}",
                         *(f"locality:threshold={{threshold}},tolerance={t}" for t in TOLERANCES)), "within",
                        "low_rank", True),
    "voids": Preset("Between the training images", "What happens to an image that was held out?",
                    "Figure 1 (fig:gen_zone)", ("digits", "mnist", "fashion-mnist", "cifar10"),
                    ("{reference}", "optimal", "wiener", "locality:threshold={threshold}"), "voids", "voids", True),
    "sensitivity": Preset("Where the networks look", "Is a network's field a row of the Wiener filter?",
                          "Figure 2 (fig:sensitivity_diff_arch)", EVERY, ("{reference}", "wiener"), "fields", "fields"),
    "architectures": Preset("Other networks on the same data", "Do architectures agree, and with whom?",
                            "Figure 2 (fig:sensitivity_diff_arch)", ("digits", "cifar10"),
                            ("{data}-unet-x0", "{data}-dit-x0")),
    "self-attention": Preset("With and without self-attention", "Does self-attention matter?",
                             "appendix (sec:ablation_sa)", ("digits",),
                             ("{data}-unet", "{data}-unet-attention"), "quality", "quality"),
    "manipulation": Preset("The W experiment", "Does the field follow the data's correlations?",
                           "Figure 4 (fig:maniulating_sensitivity)", ("leaves",),
                           ("{data}-unet", "{data}-w05-unet", "{data}-w01-unet", "{data}-w00-unet"), "marks", "fields"),
}


@dataclass(frozen=True)
class Cell:
    """One measurement, and all that it depends on."""

    kind: Kind
    dataset: str
    method: str
    num: int
    limit: int | None = None  # of the source's images
    data: Data = ("", ())
    reference: str = ""  # the network that is predicted
    steps: int = 10
    seed: int = 128  # the noise of sample k is drawn from seed + k

    @property
    def key(self) -> str:
        """The name of the cell, unique in a run."""
        limit = f", {self.limit} images" if self.limit else ""
        noise = "" if self.seed == 128 else f", noise from seed {self.seed}"
        return f"{self.kind} {self.dataset}: {self.method}, {self.num} samples{limit}{noise}"


def cells_of(preset: str, scale: str = "cpu", datasets: Sequence[str] = (),
             own: tuple[str, Mapping[str, Any], str] | None = None) -> Iterator[Cell]:
    """The cells of one preset, on those of its datasets that are wanted; or on one's own data and network.

    Args:
        own: source, options of load_images and reference, instead of the datasets.
    """
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    spec, amount = PRESETS[preset], SCALES[scale]
    if own is not None:
        if not any("{data}" in method for method in spec.methods):
            source, options, reference = own
            for method in spec.methods:
                if method != ANOTHER_SEED and "{chosen}" not in method:
                    yield _cell(spec, amount, source, Dataset(0.02, "cifar10", options), method, (source, options),
                                reference)
        return
    for name in spec.datasets:
        if not datasets or name in datasets:
            data = DATASETS[name]
            source, options = (name, data.options)
            if scale == "paper" and data.at_paper_scale:
                source, options = data.at_paper_scale
            for method in spec.methods:
                if "{chosen}" not in method or data.chosen not in (None, data.threshold):
                    yield _cell(spec, amount, name, data, method, (source, options), f"{name}-unet")


def _cell(spec: Preset, amount: Scale, name: str, data: Dataset, method: str, source: tuple[str, Mapping[str, Any]],
          reference: str) -> Cell:
    num: int = getattr(amount, spec.num)
    limit = amount.ablation_images if spec.limited and data.large else None
    own_choice = "{chosen}" in method
    method = method.format(data=name, reference=reference, threshold=data.threshold, patch_size=data.patch_size,
                           chosen=data.chosen)
    if method.startswith("els") and data.large and amount.els_images:
        most = amount.els_runtime if spec.num == "runtime" else amount.els
        num, method = min(num, most), f"{method},images_limit={amount.els_images}"
    elif spec.methods is TABLE and ("batch-mean" in method or own_choice):
        num = min(num, amount.ablations)  # the difference to the row of the paper's formula is taken image by image
    return Cell(spec.kind, name, method, num, limit, (source[0], tuple(source[1].items())), reference,
                seed=spec.seed)


# What the paper reports (Lukoianov et al., NeurIPS 2025), by dataset and method. Its CelebA-HQ and AFHQv2 at 64 x 64.
PAPER_METHODS = {"optimal": "Optimal", "wiener": "Wiener (linear)", "els": "Kamb & Ganguli", "locality": "Ours",
                 ANOTHER_SEED: "Another DDPM"}
_ORDER = ("optimal", "wiener", "els", "locality", ANOTHER_SEED)


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
