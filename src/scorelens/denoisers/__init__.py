"""Closed-form denoisers, one short file per method."""

from scorelens.denoisers.registry import DENOISERS, build_denoiser, denoiser_names, denoiser_options, find_builder

__all__ = ["DENOISERS", "build_denoiser", "denoiser_names", "denoiser_options", "find_builder"]
