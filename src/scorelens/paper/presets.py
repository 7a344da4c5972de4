"""The paper's tables and figures as data: which methods are measured on which datasets.

A preset is a set of cells. A cell is one method on one dataset; presets that need the same cell share it: the table,
the novelty and the dynamics of a method are three views of one measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scorelens.networks.paper_weights import PREFIX, paper_network
from scorelens.validation import unknown

Kind = Literal["samples", "heldout", "claim", "fields", "marks", "quality", "guided"]
Data = tuple[str, tuple[tuple[str, Any], ...]]  # a source, and options of load_images
Own = tuple[str, Mapping[str, Any], str]  # a source, options of load_images, and the reference network


@dataclass(frozen=True)
class Dataset:
    """The options of load_images and of the methods for one dataset."""

    threshold: float  # of locality: the best of the paper's ablation; of ours, if the paper lacks the data
    patch_size: str  # of els: a preset of the paper, or sizes from `scorelens calibrate`
    options: Mapping[str, Any] = field(default_factory=dict)  # of load_images
    paper: str = ""  # its name in the paper, which may use another edition
    large: bool = False  # on a CPU, els and ablations use a subset
    at_paper_scale: tuple[str, Mapping[str, Any]] | None = None  # another source and its options
    chosen: float | None = None  # the best threshold of our own ablation, which uses other noise than the tables

    @property
    def has_chosen(self) -> bool:
        """Whether our ablation prefers another threshold than the paper's."""
        return self.chosen not in (None, self.threshold)


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
    """The number of samples per cell, by kind of preset: `paper` is for GPUs, `cpu` for two cores."""

    tables: int = 128
    runtime: int = 64
    ablations: int = 128
    low_rank: int = 16
    heldout: int = 128
    claim: int = 64
    fields: int = 32
    quality: int = 1000
    guidance: int = 128
    els: int = 128
    els_runtime: int = 64
    els_images: int | None = None  # training images
    ablation_images: int | None = None


SCALES = {
    "paper": Scale(),
    "cpu": Scale(runtime=8, ablations=32, heldout=32, claim=16, fields=8, quality=256, guidance=16, els=16,
                 els_runtime=1, els_images=1000, ablation_images=10_000),
}

ANOTHER_SEED = "another seed"  # the reference network, trained from another seed


@dataclass(frozen=True)
class Method:
    """A denoiser and its options, or the name of a network. The value "@name" means that setting of the dataset."""

    denoiser: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.denoiser}:{given}" if given else self.denoiser

    def uses(self, setting: str) -> bool:
        return any(value == setting for _, value in self.options)

    def sweep(self, option: str, values: Sequence[float]) -> list[Method]:
        """The method with each value of one more option."""
        return [Method(self.denoiser, (*self.options, (option, value))) for value in values]

    def guided_by(self, weight: float) -> Method:
        """The method with this weight of guidance instead of its own."""
        return Method(self.denoiser, tuple((key, weight if key == GUIDANCE else value) for key, value in self.options))

    def resolved(self, name: str, data: Dataset, reference: str) -> Method:
        """The method for one dataset, with names and settings filled in."""
        options = tuple((key, getattr(data, value[1:]) if str(value).startswith("@") else value)
                        for key, value in self.options)
        return Method(self.denoiser.format(data=name, reference=reference), options)


def method(denoiser: str, **options: Any) -> Method:
    return Method(denoiser, tuple(options.items()))


THRESHOLDS = (0.005, 0.01, 0.02, 0.05, 0.07, 0.1, 0.15)
ENERGIES = (0.0, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5)
SOFTMAX_BATCHES = (64, 256, 512, 1024, 4096)
GUIDANCE = "guidance"  # the option of a method that is its weight
WEIGHTS = (0.0, 1.0, 2.0, 4.0, 6.0)
GUIDED_CLASSES = (0, 1, 2, 3)
REFERENCE, OPTIMAL, WIENER = method("{reference}"), method("optimal"), method("wiener")
LOCALITY = method("locality", threshold="@threshold")
BATCH_MEAN = method("locality", threshold="@threshold", softmax="batch-mean")
BY_DATA = method("locality", threshold="auto")
FROM_DATA = (BY_DATA, method("multiscale"), method("kernel-locality", threshold="auto"))
TABLE = (OPTIMAL, WIENER, method("els", patch_size="@patch_size"), LOCALITY, BATCH_MEAN,
         method("locality", threshold="@threshold", mask_rule="published", softmax="batch-mean"),
         method("locality", threshold="@chosen"), method("kernel"), *FROM_DATA, Method(ANOTHER_SEED))
CLAIM = (OPTIMAL, WIENER, *method("locality").sweep("threshold", (0.005, 0.02, 0.05, 0.1)), method("kernel"),
         *FROM_DATA)


@dataclass(frozen=True)
class Preset:
    """A table or figure: the question that it answers, and its cells."""

    title: str
    question: str
    paper: str  # the section and label in the paper; empty for ours
    datasets: Sequence[str]
    methods: Sequence[Method]
    kind: Kind = "samples"
    num: str = "tables"  # the field of the scale with the number of samples
    limited: bool = False  # to the scale's `ablation_images`, on large datasets
    seed: int = 128
    reference: str = "{data}-unet"

    @property
    def source(self) -> str:
        return f"In the paper: {self.paper}." if self.paper else "Not in the paper."


PRESETS = {
    "table1": Preset("How well each formula predicts a trained network",
                     "Which closed-form denoiser predicts the samples of a trained network best?",
                     "Table 1 (tab:metrics-comparison)", ("digits", "leaves", *MAIN), TABLE),
    "table-appendix": Preset("The same on two more datasets", "Is the order the same on other data?",
                             "appendix (tab:metrics-comparison-2)", APPENDIX, TABLE),
    "novelty": Preset("Distance to the training data", "Do the methods generate new images, or copy the data?",
                      "appendix (tab:l2-distance-comparison, fig:l2_distance_to_the_dataset)", EVERY, TABLE),
    "runtime": Preset("Time per sample", "How long does each method take?", "appendix (tab:runtime-comparison)", EVERY,
                      TABLE, num="runtime"),
    "dynamics": Preset("Along the trajectory", "At which noise levels do the predictions diverge?",
                       "appendix (fig:metrics_trajectory_mse, fig:generative_trajectory)", EVERY, TABLE),
    "threshold": Preset("The threshold of locality", "How large should the masks be?",
                        "appendix (tab:ablation-metrics)", EVERY,
                        [*method("locality").sweep("threshold", THRESHOLDS), BY_DATA], num="ablations", limited=True,
                        seed=0),
    "low-rank": Preset("Low-rank covariances", "Are the leading components enough?",
                       "appendix (tab:energy-cutoff-ablation)", ("digits", "leaves", *MAIN),
                       [each for base in (LOCALITY, WIENER) for each in (base, *base.sweep("energy", ENERGIES[1:]))],
                       num="low_rank", limited=True),
    "softmax": Preset("The softmax of the published code", "How much does averaging the softmaxes of batches change?",
                      "", ("digits", "leaves", "mnist"),
                      [LOCALITY, *BATCH_MEAN.sweep("softmax_batch", SOFTMAX_BATCHES)], num="ablations", limited=True),
    "held-out": Preset("Between the training images", "How do the models denoise an image that was held out?",
                       "Figure 1 (fig:gen_zone)", ("digits", "mnist", "fashion-mnist", "cifar10"),
                       (REFERENCE, OPTIMAL, WIENER, LOCALITY), "heldout", "heldout", True),
    "claim": Preset("Held-out error against r2",
                    "Does the formula that denoises held-out images best predict the network best?", "", EVERY, CLAIM,
                    "claim", "claim"),
    "sensitivity": Preset("Sensitivity fields", "Is a network's field a row of the Wiener filter?",
                          "Figure 2 (fig:sensitivity_diff_arch)", EVERY, (REFERENCE, WIENER), "fields", "fields"),
    "architectures": Preset("Other networks on the same data", "Do other architectures generate the same images?",
                            "Figure 2 (fig:sensitivity_diff_arch)", ("digits", "cifar10"),
                            (method("{data}-unet-x0"), method("{data}-dit-x0"))),
    "self-attention": Preset("With and without self-attention", "Does self-attention improve the samples?",
                             "appendix (sec:ablation_sa)", ("digits",),
                             (method("{data}-unet"), method("{data}-unet-attention")), "quality", "quality"),
    "manipulation": Preset("The W experiment", "Does the field follow the data's correlations?",
                           "Figure 4 (fig:maniulating_sensitivity)", ("leaves",),
                           [method(f"{{data}}-{name}") for name in ("unet", "w05-unet", "w01-unet", "w00-unet")],
                           "marks", "fields"),
    "guidance": Preset("Guidance", "How well do guided formulas predict a guided network?", "", ("mnist", "cifar10"),
                       [each for base in (WIENER, OPTIMAL, method("kernel"))
                        for each in base.sweep(GUIDANCE, WEIGHTS)], "guided", "guidance", True,
                       reference="{data}-unet-classes"),
}


@dataclass(frozen=True)
class Cell:
    """One measurement, and everything that it depends on."""

    kind: Kind
    dataset: str
    method: Method
    num: int
    limit: int | None = None  # training images
    data: Data = ("", ())
    reference: str = ""  # the network that the method predicts
    steps: int = 10
    seed: int = 128  # the noise of sample k is drawn from seed + k
    labels: tuple[int | str, ...] = ()  # classes of the samples, repeated as often as needed

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.num)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the method, as a row records it."""
        return {"kind": self.kind, "dataset": self.dataset, "num": self.num, "limit": self.limit, "source": self.data,
                "reference": self.reference, "steps": self.steps, "seed": self.seed,
                **({"labels": self.labels} if self.labels else {})}

    @property
    def key(self) -> str:
        """The name of the cell, unique in a run."""
        limit = f", {self.limit} images" if self.limit else ""
        noise = "" if self.seed == 128 else f", noise from seed {self.seed}"
        classes = f", classes {' '.join(map(str, self.labels))}" if self.labels else ""
        return f"{self.kind} {self.dataset}: {self.method}, {self.num} samples{limit}{noise}{classes}"


@dataclass(frozen=True)
class Guided:
    """The weights of guidance and the classes of the samples, where a preset has guidance; by default its own."""

    weights: tuple[float, ...] = ()
    labels: tuple[int | str, ...] = ()

    def cells(self, cell: Cell) -> Iterator[Cell]:
        """The cells that replace a cell of the preset."""
        for weight in self.weights or [dict(cell.method.options)[GUIDANCE]]:
            yield replace(cell, method=cell.method.guided_by(weight), labels=self.labels or cell.labels)


AS_GIVEN = Guided()


def cells_of(preset: str, scale: str = "cpu", datasets: Sequence[str] = (), own: Own | None = None,
             guided: Guided = AS_GIVEN) -> Iterator[Cell]:
    """The distinct cells of a preset on these datasets (default: all), or on the user's own data and network."""
    cells = _preset_cells(preset, scale, datasets, own)
    return iter(dict.fromkeys(each for cell in cells
                              for each in (guided.cells(cell) if cell.kind == "guided" else [cell])))


def _preset_cells(preset: str, scale: str, datasets: Sequence[str], own: Own | None) -> Iterator[Cell]:
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    spec, amount = PRESETS[preset], SCALES[scale]
    if own is None:
        for name in (name for name in spec.datasets if not datasets or name in datasets):
            data = DATASETS[name]
            source = data.at_paper_scale if scale == "paper" and data.at_paper_scale else (name, data.options)
            for each in spec.methods:
                if not each.uses("@chosen") or data.has_chosen:
                    yield _cell(spec, amount, name, data, each, source, spec.reference.format(data=name))
    elif not any("{data}" in each.denoiser for each in spec.methods):
        place, options, reference = own
        name, data = place, Dataset(0.02, "cifar10", options)
        if reference.startswith(PREFIX):
            name = paper_network(reference).dataset
            data = DATASETS[name]
        for each in spec.methods:
            if each.denoiser != ANOTHER_SEED and (not each.uses("@chosen") or data.has_chosen):
                yield _cell(spec, amount, name, data, each, (place, options), reference)


def own_data_of(reference: str) -> Own:
    """The data of a network of the paper, from which the formulas are derived."""
    name = paper_network(reference).dataset
    source, options = DATASETS[name].at_paper_scale or (name, DATASETS[name].options)
    return source, dict(options), reference


def _cell(spec: Preset, amount: Scale, name: str, data: Dataset, method: Method, source: tuple[str, Mapping[str, Any]],
          reference: str) -> Cell:
    num: int = getattr(amount, spec.num)
    limit = amount.ablation_images if spec.limited and data.large else None
    resolved = method.resolved(name, data, reference)
    if method.denoiser == "els" and data.large and amount.els_images:
        num = min(num, amount.els_runtime if spec.num == "runtime" else amount.els)
        resolved = Method("els", (*resolved.options, ("images_limit", amount.els_images)))
    elif spec.methods is TABLE and (method.uses("batch-mean") or method.uses("@chosen")):
        num = min(num, amount.ablations)  # enough for a paired difference to the paper's formula
    return Cell(spec.kind, name, resolved, num, limit, (source[0], tuple(source[1].items())), reference, seed=spec.seed,
                labels=GUIDED_CLASSES if spec.kind == "guided" else ())
