"""The generated regions of docs/attribution.md: LDS, and what removing images does to networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.tables import Columns, paragraph, table

NONE = "Not measured yet.\n"
LDS: Columns = {"data": "{r[study]}", "images": "{r[images]}", "prediction": "{r[method]}", "LDS": "{r[lds][mean]:.3f}",
                "95 % interval": "{r[lds][low]:.3f} … {r[lds][high]:.3f}", "halves": "{r[subsets]}"}
REMOVAL: Columns = {"data": "{r[study]}", "removed": "{r[method]}", "images removed": "{r[removed]}",
                    "rms change of the prediction": "{r[change][mean]:.4f}",
                    "95 % interval": "{r[change][low]:.4f} … {r[change][high]:.4f}"}


def attribution_regions(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The tables of the last measurement of each method."""
    last = {(row["what"], row["study"], row.get("images"), row.get("method")): row for row in rows}
    lds = sorted((row for row in last.values() if row["what"] == "lds"),
                 key=lambda row: (row["study"], row["images"], -row["lds"]["mean"]))
    removal = [row for row in last.values() if row["what"] == "removal"]
    return {"mosaic": "![mosaic of training images](figures/attribution.png)\n",
            "lds": table(lds, LDS) + "\n" + _setting(lds[0]) if lds else NONE,
            "removal": table(removal, REMOVAL) if removal else NONE}


def _setting(row: dict[str, Any]) -> str:
    return paragraph(f"""Networks of width {row['width']}, {row['steps']:,} steps; {row['tested']} images of each kind;
                     the loss is averaged over three noise levels and four draws of the noise; intervals by bootstrap
                     over the images.""")
