"""`scorelens demo`: all closed-form denoisers of the embedded digits, side by side, in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scorelens.benchmark.comparison import sampled
from scorelens.commands.run_folder import noise_record, run_folder
from scorelens.data import load_images
from scorelens.denoisers import build_denoiser
from scorelens.metrics import memorized, novelty
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.figures import Row, labelled_rows
from scorelens.report.tables import markdown

SHOWN = 12  # samples in the picture
SHOWCASE = ("optimal", "nearest", "smoothed", "wiener", "locality")


def demo(*, num: int = 128, steps: int = 10, seed: int = 0, out: Path | None = None) -> Path:
    """Sample from every closed-form denoiser of the embedded digits: one picture, one table, in seconds.

    Args:
        num: number of images per denoiser.
        steps: number of noise levels, on the paper's grid.
        seed: the noise of image k is drawn from seed + k.
        out: folder for the results; it must not exist. By default runs/demo-digits
    """
    digits, sigmas, seeds = load_images("digits"), ddim_sigmas(steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(digits.shape, seeds)
    pictures: list[Row] = []
    rows: list[dict[str, Any]] = []
    with run_folder("demo", "digits", out) as run:
        for name in SHOWCASE:
            found_samples = sampled(build_denoiser(name, digits), noise, sigmas)
            final = found_samples.images
            found = novelty(final, digits)
            nearest = Row("nearest training image", digits[found.index[:SHOWN]], attached=True)
            pictures += [Row(name, final[:SHOWN]), nearest]
            rows.append({"denoiser": name, "novelty_rms": found.rms.mean().item(),
                         "novelty_mse": found.mse.mean().item(), "memorized": memorized(final, digits),
                         "ms_per_image": 1000 * sum(found_samples.seconds) / num})
        run.record.update(data=digits.describe(), sigmas=sigmas, noise=noise_record(seeds, noise), rows=rows)
        labelled_rows(pictures, run.folder / "grid.png",
                      title="Five closed-form denoisers of the digits, sampled from the same noise")
        (run.folder / "table.md").write_text(_table(rows) + "\n")
    print(_table(rows))
    print(f"\n{num} samples each, {steps} steps; novelty: rms distance to the nearest training image; "
          f"memorized: share much closer to one training image than to any other\npicture: {run.final / 'grid.png'}")
    return run.final


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [[row["denoiser"], f"{row['novelty_rms']:.4f}", f"{row['memorized']:.0%}", f"{row['ms_per_image']:.2f}"]
             for row in rows]
    return markdown(["denoiser", "novelty (rms)", "memorized", "ms / image"], cells)
