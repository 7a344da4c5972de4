"""Closed-form denoisers, one short file for each method and its variants."""

from scorelens.denoisers.registry import (
    DENOISERS,
    build_denoiser,
    denoiser_names,
    denoiser_options,
    find_builder,
    recipe_of,
)

__all__ = ["DENOISERS", "build_denoiser", "denoiser_names", "denoiser_options", "find_builder", "recipe_of"]
