"""Networks as denoisers: reference architectures and their training, the zoo, and other checkpoints."""

from scorelens.networks.adapters import PARAMETRIZATIONS, Network
from scorelens.networks.load import load_network
from scorelens.networks.zoo import zoo_names

__all__ = ["PARAMETRIZATIONS", "Network", "load_network", "zoo_names"]
