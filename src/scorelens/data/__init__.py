"""Image sources, and the container that holds the loaded images."""

from scorelens.data.edits import add_mark
from scorelens.data.images import ImageSet, to_uint8
from scorelens.data.sources import SOURCES, load_images

__all__ = ["SOURCES", "ImageSet", "add_mark", "load_images", "to_uint8"]
