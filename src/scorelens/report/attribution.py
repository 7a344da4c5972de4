"""Attributions as tables, mosaics and pages: which training images made this?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool2d

from scorelens.data.images import to_uint8
from scorelens.files import fresh_folder, write_json
from scorelens.report.figures import INK, MUTED, Axes, Figure, Row, literal, mosaic
from scorelens.report.html import Block, Page, Section, Table, Text, write_page
from scorelens.report.html import Figure as Picture
from scorelens.report.tables import markdown
from scorelens.types import ScorelensError

if TYPE_CHECKING:
    from scorelens.analysis.attribution import Attribution, Behind, TrajectoryAttribution
    from scorelens.analysis.removal import Removal

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#00a5a5", "#d6a500", "#f032e6")
SHOWN = len(COLOURS)
ENOUGH = 0.1  # least weight of an image behind a pixel that has its colour
SMOOTHED = 0.08  # half the side of the square over which weights are averaged, as a share of the image's
FADED = 0.85  # how far the parts of an image that were not used fade to white
CANDIDATES = 300  # images with the most weight, of which the shown ones are chosen
NONE = -1  # owner of a pixel behind which no image has enough weight
MOSAIC = ("Pixels have the colour of the training image with the most weight behind them. Training images are faded "
          "where they were not used.")
LEVELS = 8  # noise levels in the row below a mosaic


def attribution_table(who: Attribution) -> str:
    """A line for each training image with the most weight, for each noisy image and target."""
    lines = [[f"{b}", who.behind.names[t], f"{k + 1}", f"{int(who.behind.index[b, t, k])}",
              who.label(int(who.behind.index[b, t, k])), f"{float(who.behind.weight[b, t, k]):.2%}"]
             for b in range(len(who.z)) for t in range(len(who.behind.names))
             for k in range(who.behind.index.shape[2])]
    return markdown(["noisy image", "of", "rank", "training image", "class", "weight"], lines)


def attribution_record(who: Attribution) -> dict[str, Any]:
    """All numbers but those of single outputs."""
    return {"formula": who.formula, "sigma": who.sigma, "r2": None if who.r2 is None else who.r2.tolist(),
            "data": who.images.describe(), "targets": behind_record(who.behind)}


def behind_record(behind: Behind) -> list[dict[str, Any]]:
    """The images behind each noisy image and target."""
    return [{"noisy_image": b, "of": name, "index": behind.index[b, t].tolist(), "weight": behind.weight[b, t].tolist(),
             "covered": float(behind.covered[b, t]), "effective_number": float(behind.effective[b, t])}
            for b in range(len(behind.index)) for t, name in enumerate(behind.names)]


@dataclass(frozen=True)
class Ownership:
    """For each pixel the training image with the most weight behind it, or NONE."""

    image: Int[np.ndarray, "h w"]
    weight: Float[np.ndarray, "h w"]
    offset: Int[np.ndarray, "h w 2"]

    def used(self, image: int) -> Bool[np.ndarray, "h w"]:
        """The pixels of a training image that it gave to those it owns."""
        (h, w), mask = self.image.shape, np.zeros(self.image.shape, bool)
        row, column = np.nonzero((self.image == image) & (self.weight > 0))
        down, right = self.offset[row, column].T
        mask[(row + down) % h, (column + right) % w] = True
        return mask

    def scaled(self, height: int, width: int) -> Ownership:
        """The same for pictures of another size, such as decoded latents."""
        (h, w) = self.image.shape
        at = np.ix_(np.arange(height) * h // height, np.arange(width) * w // width)
        return Ownership(self.image[at], self.weight[at], self.offset[at] * np.array([height // h, width // w]))


def ownership(who: Attribution, which: int, among: Sequence[int] | None = None) -> Ownership:
    """The owner of each pixel: over the channels, the image with the largest sum of weights.

    `among`: only these images count, by their weights averaged over the pixels around (`SMOOTHED` of the side), and a
    pixel around which none of them has ENOUGH weight has no owner.
    """
    index, weight, offset, c = _listed(who, which)
    at, (h, w) = np.arange(index.shape[1]), who.x0_hat.shape[2:]
    if among is None:
        same = index[:, None] == index[None]  # [kc, kc, hw]
        owner = index[(same * weight[None]).sum(axis=1).argmax(axis=0), at]
    else:
        around = _around(np.stack([_weight_of(image, index, weight) / c for image in among]).reshape(-1, h, w))
        best = around.reshape(len(among), -1)
        owner = np.where(best.max(axis=0) >= ENOUGH, np.array(among)[best.argmax(axis=0)], NONE)
    own = weight * (index == owner)
    return Ownership(owner.reshape(h, w), own.sum(axis=0).reshape(h, w) / c,
                     offset[own.argmax(axis=0), at].reshape(h, w, 2))


def _around(maps: Float[np.ndarray, "n h w"]) -> Float[np.ndarray, "n h w"]:
    """The mean over the square around each pixel, within the image."""
    side = _side(*maps.shape[1:])
    return avg_pool2d(torch.from_numpy(maps)[None], side, 1, side // 2, count_include_pad=False)[0].numpy()


def _side(height: int, width: int) -> int:
    return 2 * round(SMOOTHED * min(height, width)) + 1


def _weight_of(image: int, index: np.ndarray, weight: np.ndarray) -> Float[np.ndarray, "hw"]:
    return np.asarray((weight * (index == image)).sum(axis=0))


def main_images(who: Attribution, which: int, count: int = SHOWN) -> list[int]:
    """The few images that together have the most weight behind the pixels: each pixel counts the largest of theirs."""
    index, weight, _, c = _listed(who, which)
    numbers, number = np.unique(index, return_inverse=True)
    total = np.bincount(number.ravel(), (weight * (index >= 0)).ravel())
    most = [int(number) for number in numbers[np.argsort(-total, kind="stable")[:CANDIDATES]] if number >= 0]
    each = np.stack([_weight_of(image, index, weight) / c for image in most])  # [n, hw]
    chosen: list[int] = []
    largest = np.zeros(each.shape[1])
    for _ in range(min(count, len(most))):
        gain = np.maximum(each - largest, 0).sum(axis=1)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        largest = np.maximum(largest, each[chosen[-1]])
    return [most[k] for k in chosen]


def _listed(who: Attribution, which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Index, weight [kc, hw] and offset [kc, hw, 2] of the images listed for each pixel; and the number of channels."""
    if who.outputs is None:
        raise ScorelensError("a mosaic needs the images behind single outputs; attribute with outputs=True")
    index, weight, offset = (tensor[which].cpu().numpy() for tensor in
                             (who.outputs.index, who.outputs.weight, who.outputs.offset))
    k, c, h, w = index.shape
    return index.reshape(k * c, h * w), weight.reshape(k * c, h * w), offset.reshape(k * c, h * w, 2), c


def mosaic_figure(who: Attribution, which: int = 0, steps: Sequence[Attribution] = ()) -> Figure:
    """The prediction with pixels in the colours of the training images behind them, beside these images with the parts
    that were used; below, the same images at other `steps` of the trajectory.
    """
    from matplotlib.figure import Figure as Canvas

    chosen = main_images(who, which)
    prediction, owned = _owned(who, which, chosen)
    sizes = {image: int((owned.image == image).sum()) for image in chosen}
    order = sorted((image for image in chosen if sizes[image] or not any(sizes.values())), key=lambda k: -sizes[k])
    height = 7.1 if steps else 5.3
    figure = Canvas(figsize=(12.8, height))
    figure.text(0.2 / 12.8, 1 - 0.18 / height, "Which training images made this?", fontsize=20, color=INK, va="top",
                weight="bold")
    figure.text(0.2 / 12.8, 1 - 0.62 / height, literal(_subtitle(who, which)), fontsize=11.5, color=MUTED, va="top")
    noisy = _rgb_of(who, who.z[which:which + 1])[0]
    _show(_axes(figure, 0.2, 1.3, 1.55), noisy, "noisy image")
    _show(_axes(figure, 0.2, 3.2, 1.55), prediction, "prediction")
    axes = _axes(figure, 2.0, 1.3, 3.45)
    _mosaic(axes, prediction, owned, order)
    axes.set_title("where it comes from", fontsize=10, color=INK, loc="left", pad=4)
    side = _side(*who.x0_hat.shape[2:])
    axes.text(0, -0.015, "Colour: of the images on the right, the one with the most weight,\n"
              f"mean over {side}x{side} pixels. Grey: none of them has {ENOUGH:.0%}.",
              transform=axes.transAxes, fontsize=8, color=MUTED, va="top", linespacing=1.3)
    _legend(figure, who, owned, order)
    _levels(figure, which, order, _some(steps))
    return figure


def _axes(figure: Figure, left: float, top: float, side: float) -> Axes:
    """Square axes, by inches from the upper left corner."""
    width, height = figure.get_size_inches()
    return figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))


def _owned(who: Attribution, which: int, among: Sequence[int]) -> tuple[np.ndarray, Ownership]:
    """The prediction as it is shown, and the owners of its pixels."""
    prediction = _rgb_of(who, who.x0_hat[which:which + 1])[0]
    return prediction, ownership(who, which, among).scaled(*prediction.shape[:2])


def _legend(figure: Figure, who: Attribution, owned: Ownership, images: Sequence[int]) -> None:
    pictures = _rgb(to_uint8(who.pictures(images)))
    columns = -(-len(images) // 2) if len(images) > 3 else len(images)
    for k, (image, picture) in enumerate(zip(images, pictures, strict=True)):
        row, column = divmod(k, columns)
        axes = _axes(figure, 5.8 + 1.75 * column, 1.3 + 1.95 * row, 1.5)
        _source(axes, picture, owned, image, COLOURS[k], who.label(image))


def _levels(figure: Figure, which: int, images: Sequence[int], steps: Sequence[Attribution]) -> None:
    """A row of mosaics, one for each noise level."""
    for k, step in enumerate(steps):
        axes = _axes(figure, 0.2 + 1.57 * k, 5.6, 1.2)
        _mosaic(axes, *_owned(step, which, images), images)
        axes.set_title(f"σ = {step.sigma:.2g}", fontsize=9, color=INK, loc="left", pad=3)
        axes.set_xlabel(f"effective number {float(step.behind.effective[which, 0]):,.0f}", fontsize=7.5, color=MUTED,
                        labelpad=3)


def _some(steps: Sequence[Attribution]) -> list[Attribution]:
    """At most LEVELS of the steps, evenly, the last one among them."""
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(LEVELS, len(steps))).round().astype(int))
    return [steps[k] for k in chosen]


def _subtitle(who: Attribution, which: int) -> str:
    behind = who.behind
    fit = "" if who.r2 is None else f" (r2 {float(who.r2[which]):.2f} with the network on this image)"
    return (f"{who.formula}{fit}, noise level σ = {who.sigma:.3g}. The first {behind.index.shape[2]} of "
            f"{len(who.images):,} training images cover {float(behind.covered[which, 0]):.0%} of the weight; "
            f"effective number {float(behind.effective[which, 0]):.1f}")


def _mosaic(axes: Axes, picture: np.ndarray, owned: Ownership, images: Sequence[int]) -> None:
    """The colours of the owners over the prediction, grey where there is none, and lines between owners."""
    from matplotlib.colors import to_rgb

    light = picture.astype(float).mean(axis=2, keepdims=True) / 255
    shown = {image: k for k, image in enumerate(images)}
    owner = np.vectorize(lambda image: shown.get(int(image), NONE), otypes=[int])(owned.image)
    colours = np.array([*(to_rgb(COLOURS[k]) for k in range(len(images))), (0.0, 0.0, 0.0)])  # NONE is the last
    tinted = colours[owner] * (0.5 + 0.5 * light) + 0.4 * light * (1 - colours[owner])
    axes.imshow(np.where(owner[:, :, None] == NONE, 0.2 + 0.65 * light, tinted).clip(0, 1), interpolation="nearest")
    _outline(axes, owner, "white", 1.6)
    _bare(axes)


def _outline(axes: Axes, label: np.ndarray, colour: str, width: float) -> None:
    """Lines between pixels of different labels; thinner where there are many."""
    from matplotlib.collections import LineCollection

    rows, columns = np.nonzero(label[:, 1:] != label[:, :-1])
    lines = [[(x + 0.5, y - 0.5), (x + 0.5, y + 0.5)] for y, x in zip(rows, columns, strict=True)]
    rows, columns = np.nonzero(label[1:] != label[:-1])
    lines += [[(x - 0.5, y + 0.5), (x + 0.5, y + 0.5)] for y, x in zip(rows, columns, strict=True)]
    width *= float(np.clip(10 / np.sqrt(len(lines) + 1), 0.3, 1))
    axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, capstyle="projecting"))


def _source(axes: Axes, picture: np.ndarray, owned: Ownership, image: int, colour: str, label: str) -> None:
    """A training image in the frame of its colour; what was not used is faded."""
    used = owned.used(image)
    faded = picture * (1 - FADED) + 240 * FADED
    axes.imshow(np.where(used[:, :, None], picture, faded).astype(np.uint8), interpolation="nearest")
    share = (owned.image == image).mean()
    axes.set_title(literal(f"#{image}" + (f"  ({label})" if label else "")), fontsize=10, color=colour, loc="left",
                   weight="bold", pad=4)
    axes.set_xlabel(f"{share:.0%} of the pixels" if share >= 0.01 else "under 1% of the pixels", fontsize=8.5,
                    color=MUTED, labelpad=3)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2.5)
    _outline(axes, used.astype(int), colour, 1.3)


def _show(axes: Axes, picture: np.ndarray, title: str) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(title, fontsize=10, color=INK, loc="left", pad=4)
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _rgb_of(who: Attribution, x: Tensor) -> np.ndarray:
    return _rgb(to_uint8(who.images.pictures(x.cpu())))


def _rgb(pixels: np.ndarray) -> np.ndarray:
    """[n, c, h, w] as [n, h, w, 3]."""
    if pixels.shape[1] == 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[:, :1])], axis=1)
    channels = pixels.repeat(3, axis=1) if pixels.shape[1] == 1 else pixels[:, :3]
    return channels.transpose(0, 2, 3, 1)


def trajectory_table(who: TrajectoryAttribution) -> str:
    """A line for each step and image: the first three training images, and how many share the weight."""
    rows = []
    for name, behind in [*((f"{step.sigma:.3g}", step.behind) for step in who.steps), ("all steps", who.total)]:
        for b in range(len(behind.index)):
            first = ", ".join(f"{int(i)} ({float(w):.1%})" for i, w in
                              zip(behind.index[b, 0, :3], behind.weight[b, 0, :3], strict=True))
            rows.append([name, str(b), first, f"{float(behind.covered[b, 0]):.1%}",
                         f"{float(behind.effective[b, 0]):.1f}"])
    return markdown(["sigma", "sample", "training images with the most weight", "covered", "effective number"], rows)


def trajectory_figure(who: TrajectoryAttribution, which: int = 0, most: int = 4) -> Figure:
    """The prediction of each step above the training images with the most weight; the last column is the sum."""
    from matplotlib.figure import Figure as Canvas

    columns = [(f"σ {step.sigma:.2g}", step.x0_hat[which:which + 1], step.behind) for step in who.steps]
    columns.append(("all steps", who.steps[-1].x0_hat[which:which + 1], who.total))
    figure = Canvas(figsize=(1.05 * len(columns) + 0.4, 1.15 * (most + 1) + 0.5), layout="constrained")
    every = figure.subplots(most + 1, len(columns), squeeze=False)
    for column, (title, x0_hat, behind) in zip(every.T, columns, strict=True):
        images = [int(index) for index in behind.index[which, 0, :most]]
        _show(column[0], _rgb_of(who.steps[-1], x0_hat)[0], "")
        column[0].set_title(title, fontsize=9, color=INK)
        pictures = _rgb(to_uint8(who.steps[-1].pictures(images)))
        for axes, image, picture, weight in zip(column[1:], images, pictures, behind.weight[which, 0], strict=False):
            _show(axes, picture, "")
            axes.set_xlabel(f"#{image}  {float(weight):.1%}", fontsize=7.5, color=MUTED, labelpad=2)
        for axes in column[1 + len(images):]:
            axes.set_axis_off()
    figure.suptitle("Predictions, and the training images with the most weight behind them", fontsize=11, color=INK,
                    x=0.01, ha="left")
    return figure


def removal_table(removal: Removal) -> str:
    """A line for each noisy image and removed training image."""
    lines = [[str(b), str(int(removal.index[b, k])), f"{float(removal.weight[b, k]):.2%}",
              f"{float(removal.change[b, k]):.4f}"]
             for b in range(len(removal.index)) for k in range(removal.index.shape[1])]
    return markdown(["noisy image", "without training image", "its weight", "rms change"], lines)


def removal_figure(removal: Removal, which: int = 0) -> Figure:
    """The removed images, the predictions without them, and the changes."""
    from matplotlib.figure import Figure as Canvas

    images = removal.images.pictures(removal.images[removal.index[which].tolist()])
    without = removal.images.pictures(removal.without[which].cpu())
    change = (removal.without[which] - removal.x0_hat[which]).cpu()
    largest = change.abs().amax().clamp(min=1e-6)
    picture, middles = mosaic([Row("removed", images), Row("without", without), Row("change", change / largest)])
    figure = Canvas(figsize=(1.0 * len(images) + 1.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.imshow(picture, interpolation="nearest")
    _bare(axes)
    axes.set_yticks(middles, ["removed image", "prediction without it", f"change, scaled by {1 / float(largest):.3g}"],
                    fontsize=9)
    width = picture.shape[1] / len(images)
    axes.set_xticks([(k + 0.5) * width for k in range(len(images))],
                    [f"#{int(i)}\nrms {float(c):.3f}" for i, c in
                     zip(removal.index[which], removal.change[which], strict=True)], fontsize=8)
    axes.tick_params(length=0)
    return figure


def write_attribution(who: Attribution, folder: Path, record: Mapping[str, Any]) -> Path:
    """Write attribution.json, a mosaic for each noisy image, and report.html."""
    with fresh_folder(folder) as partial:
        write_json(partial / "attribution.json", {**record, **attribution_record(who)})
        sections = []
        for b in range(len(who.z)):
            blocks: list[Block] = []
            if who.outputs is not None:
                path = partial / f"mosaic-{b}.png"
                who.figure(b).savefig(path, dpi=160)
                blocks.append(Picture(path, MOSAIC, alt="mosaic of training images"))
            sections.append(Section(f"Noisy image {b}", [*blocks, *_weights(who.behind, who, b)]))
        write_page(Page("Which training images made this?", _summary(who), sections,
                        footer=f"Data fingerprint {who.images.fingerprint}; every number is in attribution.json."),
                   partial / "report.html")
    return folder.expanduser()


def write_trajectory(who: TrajectoryAttribution, folder: Path, record: Mapping[str, Any]) -> Path:
    """Write trajectory.json, a figure and the mosaics of each sample, and report.html."""
    last = who.steps[-1]
    with fresh_folder(folder) as partial:
        steps = [{"sigma": step.sigma, "formula": step.formula, "targets": behind_record(step.behind),
                  "r2": None if step.r2 is None else step.r2.tolist()} for step in who.steps]
        write_json(partial / "trajectory.json", {**record, "data": last.images.describe(), "steps": steps,
                                                 "all_steps": behind_record(who.total)})
        sections = []
        for b in range(len(last.z)):
            path = partial / f"trajectory-{b}.png"
            who.figure(b).savefig(path, dpi=160)
            blocks: list[Block] = [Picture(path, "From left to right: the steps of the trajectory, and their mean.",
                                           alt="training images behind each step")]
            drawn = [step for step in who.steps if step.outputs is not None]
            if drawn:
                own = partial / f"mosaic-{b}.png"
                who.mosaic(b).savefig(own, dpi=160)
                blocks.insert(0, Picture(own, MOSAIC, alt="mosaic of training images"))
            for step in drawn:
                own = partial / f"mosaic-{b}-sigma-{step.sigma:.3g}.png"
                step.figure(b).savefig(own, dpi=110)
                blocks.append(Picture(own, f"Noise level {step.sigma:.3g}.", alt="mosaic of training images"))
            sections.append(Section(f"Sample {b}", [*blocks, *_weights(who.total, last, b)]))
        write_page(Page("Which training images made this?", f"{len(who.steps)} steps; weights of "
                        f"{len(last.images):,} images of {last.images.name}.", sections,
                        footer="Every number is in trajectory.json."), partial / "report.html")
    return folder.expanduser()


def write_removal(removal: Removal, folder: Path) -> Path:
    """Write removal.json and a figure for each noisy image."""
    with fresh_folder(folder) as partial:
        write_json(partial / "removal.json", {
            "data": removal.images.describe(), "sigma": removal.sigma, "index": removal.index.tolist(),
            "weight": removal.weight.tolist(), "rms_change": removal.change.tolist()})
        for b in range(len(removal.index)):
            removal.figure(b).savefig(partial / f"removal-{b}.png", dpi=160)
    return folder.expanduser()


def _weights(behind: Behind, who: Attribution, b: int) -> list[Block]:
    blocks: list[Block] = []
    for t, name in enumerate(behind.names):
        lines = [[str(int(behind.index[b, t, k])), who.label(int(behind.index[b, t, k])),
                  f"{float(behind.weight[b, t, k]):.3%}"] for k in range(behind.index.shape[2])]
        blocks.append(Table(["training image", "class", "weight"], lines,
                            f"{name}: these cover {float(behind.covered[b, t]):.1%} of the weight; effective number of "
                            f"images {float(behind.effective[b, t]):.1f}"))
    return blocks or [Text(["Nothing was asked about."])]


def _summary(who: Attribution) -> str:
    fit = "" if who.r2 is None else (f" The network has no weights; {who.formula} predicts it with r2 "
                                     f"{float(who.r2.mean()):.2f} on these images, and answers for it.")
    return (f"Posterior weights of {who.formula} over {len(who.images):,} images of {who.images.name}, at noise level "
            f"{who.sigma:.3g}.{fit}")
