"""Training: reproducible to the bit, resumable at any step, and it learns."""

import copy

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from scorelens.data.images import ImageSet
from scorelens.networks import load_network
from scorelens.networks.architectures import ARCHITECTURES, build_network, preset
from scorelens.networks.training_loop import (
    NotFiniteError,
    Recipe,
    check_finite,
    initial_state,
    load_checkpoint,
    save_checkpoint,
    training_steps,
)
from scorelens.noise import beta_schedule
from scorelens.types import ScorelensError


def images(count=48, shape=(1, 8, 8)):
    return ImageSet(np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8), "noise")


def recipe(**changes):
    sizes = preset("small", (1, 8, 8))
    given = {"network": "unet", "sizes": sizes, "prediction": "epsilon", "batch": 16, "learning_rate": 1e-3,
             "dropout": 0.1, "ema": 0.9, "seed": 3, "precision": "float32"}
    return Recipe(**{**given, **changes})


def trained(steps, of=4, state=None, **changes):
    """A state after `steps` of a training planned for `of`."""
    data, how = images(), recipe(**changes)
    state = state or initial_state(data, how)
    for k, current in enumerate(training_steps(data, how, state, of), start=state.step + 1):
        if k == steps:
            return current
    return state


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (2, 12, 20)])
def test_small_networks_are_small(shape):
    """At most 1.5 M parameters; 0.3 M for the digits."""
    for name in ARCHITECTURES if shape[1] == shape[2] else ("unet", "unet-attention"):
        count = build_network(name, shape, sizes=preset("small", shape)).num_parameters()
        assert count <= (0.31e6 if shape == (1, 8, 8) else 1.5e6), (name, count)


@pytest.mark.parametrize("side, widths", [(28, (64, 128, 128)), (32, (128, 256, 384, 512)), (64, (128, 256, 384, 512))])
def test_the_papers_networks_have_the_papers_sizes(side, widths):
    sizes = preset("paper", (3, side, side))
    found = sizes.widths, sizes.blocks, sizes.dropout, sizes.learning_rate, sizes.epochs
    assert found == (widths, 2, 0.15, 1e-4, 200)


def test_unet_has_no_attention_anywhere_unless_asked_for():
    """diffusers' middle block attends unless it is told not to."""
    def attends(name):
        model = build_network(name, (1, 16, 16), sizes=preset("small", (1, 16, 16)))
        return [type(m).__name__ for m in model.modules() if "attention" in type(m).__name__.lower()]

    assert attends("unet") == []
    assert len(attends("unet-attention")) >= 3  # on the way down, in the middle, on the way up


def test_a_dit_refuses_images_it_cannot_cut_into_patches():
    with pytest.raises(ScorelensError, match="square images of even side"):
        build_network("dit", (1, 8, 12), sizes=preset("small", (1, 8, 12)))


@pytest.mark.slow
@pytest.mark.parametrize("network", ARCHITECTURES)
@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
def test_training_lowers_the_loss(network, prediction):
    losses = trained(60, of=60, network=network, prediction=prediction).losses
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:5])  # independent pixels: there is little to learn


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    first, again, other = trained(4), trained(4), trained(4, seed=4)
    assert torch.equal(weights(first.averaged), weights(again.averaged))
    assert not torch.equal(weights(first.averaged), weights(other.averaged))


def test_global_random_state_is_neither_used_nor_changed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = weights(trained(3).model)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(weights(trained(3).model), first)


@pytest.mark.parametrize("at", [1, 3])
def test_resumed_training_ends_with_the_same_weights(at, tmp_path):
    """Dropout, order, noise, Adam's moments, the average and the losses all go on as if nothing had happened."""
    whole = trained(5, of=5)
    save_checkpoint(tmp_path / "c.safetensors", trained(at, of=5), seconds=1.5)
    state = initial_state(images(), recipe())
    assert load_checkpoint(tmp_path / "c.safetensors", state) == {"seconds": 1.5}
    assert state.step == at
    resumed = trained(5, of=5, state=state)
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert torch.equal(weights(resumed.averaged), weights(whole.averaged))
    assert resumed.losses == whole.losses


def test_a_broken_checkpoint_is_named(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, trained(1))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ScorelensError, match="cannot be read"):
        load_checkpoint(path, initial_state(images(), recipe()))


@pytest.mark.parametrize("change", ["no metadata", "a missing tensor", "another shape", "NaN", "a step too far"])
def test_a_checkpoint_that_lacks_something_is_named(tmp_path, change):
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, trained(1))
    with safe_open(path, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    name = next(name for name in tensors if name.startswith("model."))
    if change == "a missing tensor":
        del tensors[name]
    elif change == "another shape":
        tensors[name] = torch.zeros(1, 2, 3)
    elif change == "NaN":
        tensors[name] = tensors[name] * float("nan")
    save_file(tensors, path, metadata=None if change == "no metadata" else
              {**metadata, "step": "2"} if change == "a step too far" else metadata)
    with pytest.raises(ScorelensError, match=r"checkpoint\.safetensors is damaged"):
        load_checkpoint(path, initial_state(images(), recipe()))


def test_every_image_is_seen_once_in_an_epoch():
    from scorelens.networks.training_loop import _batch

    seen = np.concatenate([_batch(50, recipe(), step) for step in range(4)])  # 16 + 16 + 16 + 2
    assert sorted(seen) == list(range(50))
    later = np.concatenate([_batch(50, recipe(), step) for step in range(4, 8)])
    assert sorted(later) == list(range(50)) and list(later) != list(seen)


def test_the_average_follows_the_weights():
    """avg_k = d avg_(k-1) + (1 - d) w_k, with d = min(ema, k / (k + 9))."""
    state = initial_state(images(), recipe())
    expected = weights(state.averaged).double()
    for current in training_steps(images(), recipe(), state, 4):
        d = min(0.9, current.step / (current.step + 9))
        expected = d * expected + (1 - d) * weights(current.model).double()
    torch.testing.assert_close(weights(state.averaged).double(), expected, rtol=1e-6, atol=1e-6)


def test_learning_rate_warms_up_and_falls_to_zero():
    from scorelens.networks.training_loop import _rate

    rates = [_rate(recipe(), k, 1000) for k in range(1000)]
    assert rates[0] == pytest.approx(1e-3 / 50, rel=1e-3) and max(rates) <= 1e-3
    assert rates[500] == pytest.approx(0.5e-3) and rates[-1] < 1e-8


def test_a_loss_that_is_no_number_changes_nothing():
    state = trained(2, of=10)
    with torch.no_grad():
        next(state.model.parameters()).fill_(torch.nan)
    before = copy.deepcopy(weights(state.averaged))
    with pytest.raises(NotFiniteError, match="step 3"):
        next(training_steps(images(), recipe(), state, 10))
    assert state.step == 2 and len(state.losses) == 2 and torch.equal(weights(state.averaged), before)
    with pytest.raises(NotFiniteError):
        check_finite(state)


@pytest.mark.slow
def test_a_network_learns_the_mean_of_constant_data():
    """Data of one image: the optimal prediction of x0 is that image, at every noise level."""
    one = ImageSet(np.full((8, 1, 8, 8), 200, np.uint8), "one")
    how = recipe(prediction="x0", dropout=0.0, learning_rate=3e-3)
    state = initial_state(one, how)
    for _ in training_steps(one, how, state, 200):
        pass
    network = load_network(state.averaged, parametrization="x0", schedule=beta_schedule(), shape=(1, 8, 8))
    z = 2 * torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert (network(z, 2.0) - (200 / 127.5 - 1)).abs().mean() < 0.1


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"learning_rate": 0.0}, {"dropout": 1.0}, {"ema": -0.1}])
def test_impossible_recipes_are_refused(wrong):
    with pytest.raises(ScorelensError, match=next(iter(wrong))):
        recipe(**wrong)


def test_v_with_weighting_1_has_the_loss_of_epsilon():
    """eps = sqrt(a) v + sqrt(1 - a) x_t: an error of v is sqrt(a) times that error of eps."""
    from types import SimpleNamespace

    from scorelens.networks.training_loop import _loss

    draw = torch.Generator().manual_seed(0)
    x0, eps, guess = torch.randn(3, 6, 1, 8, 8, generator=draw)
    a, t = torch.linspace(0.01, 0.99, 6).view(-1, 1, 1, 1), torch.zeros(6, dtype=torch.long)

    def model(output):
        made = lambda x, t: SimpleNamespace(sample=output(x))  # noqa: E731
        made.config = {}
        return made

    as_v = model(lambda x: (guess - (1 - a).sqrt() * x) / a.sqrt())
    plain = _loss(model(lambda x: guess), x0, eps, a, t, recipe(prediction="epsilon"))
    weighted = _loss(as_v, x0, eps, a, t, recipe(prediction="v", weighting=1.0))
    torch.testing.assert_close(weighted, plain, rtol=1e-4, atol=0)
    halfway = _loss(as_v, x0, eps, a, t, recipe(prediction="v", weighting=0.5))
    assert halfway > weighted
