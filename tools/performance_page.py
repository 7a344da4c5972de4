"""The regions and the figure of docs/performance.md, from perf/results/performance.jsonl."""

from __future__ import annotations

from typing import Any

from tools.tables import MISSING, Columns, paragraph, table

Rows = dict[str, dict[str, Any]]
LIMITS = {"cifar10": 3e9, "celeba": 12e9}  # bytes that we allow ourselves
IMAGENET = 1_281_167
GPUS, GPU_BANDWIDTH = 8, 1.555e12  # A100, by its specification
NOT_YET = "Not measured yet.\n"
FIGURE = "![Time of a ten-step sample against the number of training images](performance-scaling.png)\n"
CORES, HERE = 64, 2  # of a large machine, and of this one

SUMMARY: Columns = {
    "dataset": "{r[name]}", "images": "{r[images]:,}", "D": "{r[dim]:,}", "torch / fused": "{r[torch_to_fused]:.1f}",
    "dense / fused": "{r[dense_to_fused]:.0f}",
    "masks / fused": lambda row: f"{row['seconds']['mask'] / row['seconds']['fused']:.2f}",
    "largest error": lambda row: f"{max(step['error'] for step in row['steps']):.1e}"}
STEPS: Columns = {
    "sigma": "{r[sigma]:.3g}", "mask density": "{r[density]:.3f}", "terms per distance": "{r[changes]:.0f}",
    "plan of torch": "{r[torch_plan]}",
    "torch / fused": lambda step: f"{step['torch_seconds'] / step['fused_seconds']:.1f}",
    "dense / fused": lambda step: f"{step['dense_seconds'] / step['fused_seconds']:.0f}", "error": "{r[error]:.1e}"}
PATCHES: Columns = {
    "sigma": "{r[sigma]:.3g}", "torch / fused": lambda step: f"{step['torch_seconds'] / step['fused_seconds']:.1f}",
    "largest difference": "{r[difference]:.1e}"}
LARGE: Columns = {
    "images": "{r[images]:,}", "time relative to the first": "{r[relative]:.2f}", "minutes": "{r[minutes]:.1f}",
    "minutes for masks": "{r[mask_minutes]:.1f}", "peak memory, GB": "{r[gigabytes]:.1f}"}
PROCESSES: Columns = {
    "processes": "{r[processes]}", "speed": "{r[speed]:.2f}",
    "peak memory per process, GB": lambda point: f"{point['peak_bytes'] / 1e9:.2f}",
    "largest difference of x0_hat": "{r[largest_difference]:.1e}"}
MEMORY: Columns = {
    "dataset": "{r[name]}", "peak, GB": lambda row: f"{row['peak_bytes'] / 1e9:.2f}",
    "limit, GB": lambda row: f"{LIMITS[row['name']] / 1e9:.0f}" if row["name"] in LIMITS else MISSING}


def performance_regions(rows: Rows) -> dict[str, str]:
    """The content of each region of the page; cells that nobody has measured yet say so."""
    plans, memory, large = (_kind(rows, kind) for kind in ("plans", "memory", "large"))
    large.sort(key=lambda row: row["images"])
    one = {"patches": _patches, "sharing": _sharing, "slider": _slider, "processes": _processes, "choice": _choice}
    found = {cell: write(rows[cell]) if cell in rows else NOT_YET for cell, write in one.items()}
    levels = (f"### {row['name']} by noise level\n\n{table(row['steps'], STEPS)}" for row in plans)
    return {**found, "scaling": FIGURE if "scaling" in rows else NOT_YET,
            "plans": table(plans, SUMMARY), "levels": "\n".join(levels),
            "large": table([_large(row, large[0]) for row in large], LARGE) if large else NOT_YET,
            "imagenet": _imagenet(large[-1], rows["plans celeba"]) if large and "plans celeba" in rows else NOT_YET,
            "memory": (table(memory, MEMORY) if memory else NOT_YET) + "\n" + _machine(rows)}


def _patches(row: dict[str, Any]) -> str:
    return paragraph(f"""
        One noisy image of CIFAR-10, {row['images']} training images, the patch sizes fitted in the paper, ten steps:
        torch / fused {row['torch_to_fused']:.1f}.""") + "\n" + table(row["steps"], PATCHES)


def _sharing(row: dict[str, Any]) -> str:
    return paragraph(f"""
        With {row['busy']} other busy processes on {row['cores']} cores, a step of CIFAR-10 ({row['images']:,} images,
        batch 8) takes {row['ratios']['fused']:.1f} times as long as alone with the fused kernel, and
        {row['ratios']['torch']:.1f} times with torch.""")


def _slider(row: dict[str, Any]) -> str:
    return paragraph(f"""
        On MNIST with all {row['images']:,} images, at sigma {row['sigma']:.3g}, the slowest of {len(row['seconds'])}
        redraws took {row['slowest']:.2f} s.""")


def _choice(row: dict[str, Any]) -> str:
    return paragraph(f"""
        On CIFAR-10 ({row['images']:,} images), choosing among {row['candidates']} thresholds at all ten noise levels
        took {row['seconds'] / 60:.1f} minutes: {', '.join(f'{tau:g}' for tau in row['thresholds'])}, from high noise to
        low.""")


def _large(row: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    return {"images": row["images"], "relative": row["seconds"] / first["seconds"], "minutes": row["seconds"] / 60,
            "mask_minutes": row["mask_seconds"] / 60, "gigabytes": row["peak_bytes"] / 1e9}


def _imagenet(row: dict[str, Any], faces: dict[str, Any]) -> str:
    """From Tiny-ImageNet, which has images of the same size, to ImageNet's number of images."""
    hours = row["seconds"] / row["batch"] * IMAGENET / row["images"] / 3600
    terms = sum(step["changes"] for step in faces["steps"]) * row["dim"] * IMAGENET
    return paragraph(f"""
        Time is proportional to the number of images, so the {IMAGENET:,} images of ImageNet would take {hours:.2f}
        hours per sample on the {HERE} cores of this machine, and {hours * 60 * HERE / CORES:.1f} minutes on {CORES}
        such cores, as threads do not wait for one another. {GPUS} GPUs with {GPU_BANDWIDTH / 1e12:.4g} TB/s each (the
        specification of an A100) would take about {4 * terms / (GPUS * GPU_BANDWIDTH):.0f} s per sample with the torch
        plan, if they read its {terms:.1e} terms (with the masks of the faces) at full bandwidth. Each would hold
        {IMAGENET * row['dim'] / GPUS / 1e9:.1f} GB of pixels.""")


def _processes(row: dict[str, Any]) -> str:
    points = row["points"]
    return table([{**point, "speed": points[0]["seconds"] / point["seconds"]} for point in points], PROCESSES)


def scaling_figure(row: dict[str, Any]) -> Any:
    """Seconds of a ten-step sample against N: the dense plan, ours, and the floor."""
    from matplotlib.figure import Figure

    from scorelens.report.figures import quiet

    points = row["points"]
    counts = [point["images"] for point in points]
    dense = [points[0]["dense"] * count / counts[0] for count in counts]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    curves = (("dense, as published", dense, "#9a9a9a"), ("Scorelens", [point["fused"] for point in points], "#c8502d"),
              ("floor: masks of one pixel", [point["floor"] for point in points], "#1f6fb4"))
    for label, seconds, color in curves:
        axes.loglog(counts, seconds, "o-" if label != curves[0][0] else "--", color=color, lw=2)
        axes.annotate(f" {label}\n {seconds[-1]:.3g} s", (counts[-1], seconds[-1]), color=color, va="center",
                      fontsize=9)
    axes.set_xlim(counts[0] / 1.2, counts[-1] * 3.2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("training images (CIFAR-10)")
    axes.set_ylabel("seconds for a ten-step sample")
    axes.yaxis.set_major_formatter("{x:g}")
    quiet(axes)
    return figure


def _kind(rows: Rows, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind; a cell is called by its kind and a name."""
    return [{"name": cell.removeprefix(f"{kind} "), **row} for cell, row in rows.items() if cell.startswith(kind)]


def _machine(rows: Rows) -> str:
    machines = sorted({(row["environment"]["threads"], row["environment"]["versions"]["torch"])
                       for row in rows.values()})
    return "Measured with " + "; ".join(f"{threads} threads, torch {version}" for threads, version in machines) + ".\n"
