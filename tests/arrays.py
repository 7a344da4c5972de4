"""Reading what commands write."""

from pathlib import Path

import numpy as np


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which is closed afterwards."""
    with np.load(path) as arrays:
        return dict(arrays)
