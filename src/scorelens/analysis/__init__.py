"""What one measures on any denoiser, as functions that return dataclasses."""
