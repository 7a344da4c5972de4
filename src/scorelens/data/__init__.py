"""Image sources, and the container that holds the loaded images."""

from scorelens.data.edits import add_mark
from scorelens.data.images import ImageSet, to_uint8
from scorelens.data.latents import Autoencoder, encode_images
from scorelens.data.sources import SOURCES, load_images

__all__ = ["SOURCES", "Autoencoder", "ImageSet", "add_mark", "encode_images", "load_images", "to_uint8"]
