"""Statistics fitted to the images: moments, principal components, Wiener matrix, masks."""

from scorelens.statistics.masks import locality_masks, shrinkage, wiener_matrix
from scorelens.statistics.moments import GaussianStats, fit_gaussian

__all__ = ["GaussianStats", "fit_gaussian", "locality_masks", "shrinkage", "wiener_matrix"]
