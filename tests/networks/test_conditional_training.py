"""Training on classes: which labels a network sees, and starting from a network without classes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from scorelens import load_images, load_network, train
from scorelens.data.images import ImageSet
from scorelens.networks.training_loop import copy_weights, initial_state, training_steps
from scorelens.types import ScorelensError
from tests.networks.test_training_loop import recipe


def labelled(labels: bool = True) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 1, 8, 8), dtype=np.uint8)
    return ImageSet(pixels, "noise", labels=np.arange(48) % 3 if labels else None, class_names=("a", "b", "c"))


@pytest.mark.parametrize(("network", "dropout"), [("unet", 0.5), ("dit", 0.5), ("dit", 0.0), ("dit", None)])
def test_the_labels_a_network_sees(network: str, dropout: float | None) -> None:
    """Each image comes with its class or the null class, 3; without dropout always with its class."""
    images, how, seen = labelled(), recipe(network=network, label_dropout=dropout), []
    state = initial_state(images, how)
    table = state.model.class_embedding if network == "unet" else \
        state.model.transformer_blocks[0].norm1.emb.class_embedder.embedding_table
    table.register_forward_hook(lambda module, given, output: seen.append(given[0]))
    batches = [images.labels[np.random.default_rng((how.seed, 0)).permutation(48)[k:k + 16]] for k in (0, 16, 32)]
    assert sum(1 for _ in training_steps(images, how, state, 3)) == 3
    given, true = torch.cat(seen[::len(seen) // 3]), torch.from_numpy(np.concatenate(batches))
    null = 1 if dropout is None else 3
    assert ((given == true) | (given == null)).all()
    share = (given == null).double().mean().item()
    assert share == {0.0: 0.0, None: 1.0}.get(dropout, share) and (dropout != 0.5 or 0.25 < share < 0.75)


@pytest.mark.parametrize("network", ["unet", "dit"])
def test_a_network_can_learn_classes_in_addition(network: str) -> None:
    """It starts with the predictions of the network without classes, for every class."""
    images = labelled()
    plain = initial_state(images, recipe(network=network, seed=1))
    for model in (plain.model, plain.averaged):  # a DiT's last layer starts at zero
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    state = initial_state(images, recipe(network=network, label_dropout=0.1))
    copy_weights(state, plain.model)
    x, t = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2)), torch.full((4,), 500)
    options = {} if network == "unet" else {"class_labels": torch.ones(4, dtype=torch.int64)}
    expected = plain.model.eval()(x, t, **options).sample
    torch.testing.assert_close(state.model.eval()(x, t, class_labels=torch.arange(4)).sample, expected)
    torch.testing.assert_close(state.averaged(x, t, class_labels=torch.arange(4)).sample, expected)


@pytest.mark.parametrize("network", ["unet", "dit"])
def test_a_trained_network_knows_its_classes(network: str, tmp_path: Path) -> None:
    images = load_images("digits", limit=64)
    folder = train(images, tmp_path / "net", network=network, conditional=True, epochs=0.5).folder
    loaded = load_network(folder)
    assert loaded.label == loaded.classes.null == 10 and loaded.classes.names == images.class_names
    assert loaded.card["label_dropout"] == 0.1 and loaded.conditional("7").label == 7
    assert "10% of the images were seen as the null class" in (folder / "README.md").read_text()
    with pytest.raises(ScorelensError, match="noise has no labels"):
        train(labelled(False), tmp_path / "other", conditional=True)
