"""Measurements on any denoiser, as functions that return dataclasses."""
