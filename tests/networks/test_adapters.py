"""Any model as a denoiser: each parametrization against the process that defines it, with a model that knows x0."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scorelens import ScorelensError, check_denoiser, sample, seeded_noise
from scorelens.networks.adapters import Network
from scorelens.noise import FlowSchedule, SigmaSchedule, beta_schedule
from tests.networks.makers import tiny_dit, tiny_unet

LINEAR = beta_schedule("linear")
SHAPE = (2, 4, 4)
X0, EPS = 0.5 * seeded_noise(SHAPE, [0, 1, 2]), seeded_noise(SHAPE, [3, 4, 5])


def close(found: Tensor, expected: Tensor, sigma: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * (1 + sigma))


class Oracle:
    """A model that was told x0 and eps: it checks x_t, remembers t and answers with what it is meant to predict."""

    def __init__(self, keep: float, noise: float, predicts: Tensor) -> None:
        self.x_t, self.predicts, self.times = keep * X0 + noise * EPS, predicts, []

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        torch.testing.assert_close(x_t, self.x_t, rtol=1e-5, atol=1e-5)
        self.times.append(t)
        return self.predicts


@pytest.mark.parametrize("t", [0, 17, 500, 999])
@pytest.mark.parametrize("name", ["epsilon", "x0", "v"])
def test_ddpm_parametrizations_invert_its_process(name: str, t: int) -> None:
    """x_t = sqrt(a) x0 + sqrt(1-a) eps; a model that predicts eps, x0 or v = sqrt(a) eps - sqrt(1-a) x0 gives x0."""
    a = LINEAR.alphas[t].item()
    targets = {"epsilon": EPS, "x0": X0, "v": math.sqrt(a) * EPS - math.sqrt(1 - a) * X0}
    oracle, sigma = Oracle(math.sqrt(a), math.sqrt(1 - a), targets[name]), math.sqrt((1 - a) / a)
    close(Network(oracle, name, LINEAR)(X0 + sigma * EPS, sigma), X0, sigma)
    torch.testing.assert_close(oracle.times, [torch.full((3,), float(t))], rtol=0, atol=1e-3)


@pytest.mark.parametrize("s", [0.001, 0.3, 0.5, 0.99])
def test_velocity_inverts_flow_matching(s: float) -> None:
    """x_s = (1-s) x0 + s eps moves with dx/ds = eps - x0, and sigma = s / (1-s); the model's time is 1000 s."""
    oracle, sigma = Oracle(1 - s, s, EPS - X0), s / (1 - s)
    close(Network(oracle, "velocity", FlowSchedule())(X0 + sigma * EPS, sigma), X0, sigma)
    torch.testing.assert_close(oracle.times, [torch.full((3,), 1000 * s)])


def test_an_edm_denoiser_is_returned_as_it_is() -> None:
    """D(z, sigma) meets z unscaled and one sigma, which broadcasts as the number it is."""
    z = X0 + 3 * EPS
    network = Network(lambda z, sigma: z / (1 + sigma ** 2), "denoised", SigmaSchedule())
    torch.testing.assert_close(network(z, 3.0), z / 10)


@pytest.mark.parametrize("name", ["epsilon", "x0", "v", "velocity", "denoised"])
def test_each_image_may_have_its_own_noise_level(name: str) -> None:
    """One call of the model with a timestep for each image; a model of sigma is called once for each level."""
    calls = []
    network = Network(lambda x, t: calls.append(t) or x / (1 + t.view(-1, 1, 1, 1)), name,
                      SigmaSchedule() if name == "denoised" else LINEAR)
    levels = LINEAR.sigmas[[700, 3, 700]]
    z = X0 + levels.view(-1, 1, 1, 1).float() * EPS
    together = network(z, levels)
    assert [t.shape for t in calls] == ([(), ()] if name == "denoised" else [(3,)])
    for k, sigma in enumerate(levels.tolist()):
        torch.testing.assert_close(together[k:k + 1], network(z[k:k + 1], sigma))
    with pytest.raises(ScorelensError, match=r"got shape \(2,\)"):
        network(z, levels[:2])


def test_sigma_between_steps_is_a_time_between_them() -> None:
    times = []
    network = Network(lambda x, t: times.append(t) or x, "epsilon", LINEAR)
    for t in (40, 41):
        network(X0, LINEAR.sigmas[t])
    network(X0, math.sqrt(LINEAR.sigmas[40] * LINEAR.sigmas[41]))
    assert [time[0].item() for time in times] == pytest.approx([40, 41, 40.5], abs=1e-4)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, None), lambda x: SimpleNamespace(sample=x),
                                  lambda x: torch.cat([x, 9 * x], dim=1)],
                         ids=["tensor", "tuple", "sample", "learned variance"])
def test_what_a_model_may_return(wrap: Any) -> None:
    network = Network(lambda x, t: wrap(x), "x0", LINEAR)
    torch.testing.assert_close(network(X0, 1.0), X0 / math.sqrt(2))


@pytest.mark.parametrize(("output", "message"), [(None, "returned NoneType"), ((), "returned tuple"),
                                                 (torch.zeros(3, 2, 4, 5), r"to \[3, 2, 4, 5\]")])
def test_what_it_may_not(output: Any, message: str) -> None:
    with pytest.raises(ScorelensError, match=message):
        Network(lambda x, t: output, "x0", LINEAR)(X0, 1.0)


class Dropping(nn.Module):
    """In training mode it would drop half of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1 / 3))
        self.calls: list[torch.dtype] = []

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls.append(x.dtype)
        return self.weight * nn.functional.dropout(x, training=self.training)


def test_a_module_is_copied_as_it_is() -> None:
    """It evaluates without dropout, follows no later change, and leaves the user's own module alone."""
    module = Dropping()
    network = Network(module, "x0", LINEAR)
    torch.testing.assert_close(network(X0, 1.0), X0 / 3 / math.sqrt(2))
    assert module.training and module.weight.requires_grad and not module.calls
    module.weight.data.fill_(7.0)
    torch.testing.assert_close(network(X0, 1.0), X0 / 3 / math.sqrt(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_follows_z(dtype: torch.dtype) -> None:
    """Half precision is computed in float32; float64 with weights in float64, and float32 afterwards as before."""
    network = Network(Dropping(), "x0", LINEAR)
    before = network(X0, 1.0)
    out = network(X0.to(dtype), 1.0)
    assert out.dtype == dtype
    computed = torch.promote_types(dtype, torch.float32)
    expected = torch.tensor(1 / 3).to(computed) * (X0.to(dtype).to(computed) / math.sqrt(2))
    torch.testing.assert_close(out, expected.to(dtype), rtol=3 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(network(X0, 1.0), before)


def test_gradients_reach_z_and_not_the_weights() -> None:
    network = Network(tiny_unet(), "epsilon", LINEAR)
    z = seeded_noise((1, 8, 8), [0], dtype=torch.float64).requires_grad_()
    direction = seeded_noise((1, 8, 8), [1], dtype=torch.float64)
    (slope,) = torch.autograd.grad((network(z, 2.0) * direction).sum(), z)
    h = 1e-5
    with torch.no_grad():
        change = ((network(z + h * direction, 2.0) - network(z - h * direction, 2.0)) * direction).sum() / (2 * h)
    torch.testing.assert_close((slope * direction).sum(), change, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("model", "label"), [(tiny_unet(), None), (tiny_dit(out_channels=2), 3)], ids=["unet", "dit"])
@pytest.mark.parametrize("parametrization", ["epsilon", "x0", "v", "velocity"])
def test_networks_are_denoisers(parametrization: str, model: nn.Module, label: int | None) -> None:
    network = Network(model, parametrization, LINEAR, (1, 8, 8), label)
    check_denoiser(network)
    assert not hasattr(network, "converges_to_mean")
    assert sample(network, seeded_noise((1, 8, 8), [0]), [5.0, 0.5]).images.shape == (1, 1, 8, 8)


def test_the_label_reaches_the_model() -> None:
    given = []
    network = Network(lambda x, t, class_labels: given.append(class_labels) or x, "x0", LINEAR, label=5)
    network(X0, 1.0)
    assert given[0].tolist() == [5, 5, 5] and given[0].dtype == torch.int64


@pytest.mark.parametrize(("z", "sigma", "message"), [
    (X0, 1e3, r"sigma = 1000 is outside this network's noise levels, 0.010001 to 157.41"),
    (X0, 1e-3, "outside"), (X0, 0.0, "finite number > 0"), (X0, float("inf"), "finite number > 0"),
    (X0 * math.nan, 1.0, "NaN"), (X0[0], 1.0, r"\[B, C, H, W\]"), (X0.long(), 1.0, "floating-point")])
@pytest.mark.parametrize("shape", [None, SHAPE])
def test_bad_input_is_refused(z: Tensor, sigma: float, message: str, shape: tuple | None) -> None:
    with pytest.raises(ScorelensError, match=message):
        Network(lambda x, t: x, "x0", LINEAR, shape)(z, sigma)


def test_a_known_shape_is_held_to() -> None:
    z = X0[:, :1]
    assert Network(lambda x, t: x, "x0", LINEAR)(z, 1.0).shape == z.shape
    with pytest.raises(ScorelensError, match=r"\(C, H, W\) = \(2, 4, 4\)"):
        Network(lambda x, t: x, "x0", LINEAR, SHAPE)(z, 1.0)


def test_an_unknown_parametrization_is_refused() -> None:
    with pytest.raises(ScorelensError, match="unknown parametrization 'epsilom', did you mean 'epsilon'"):
        Network(lambda x, t: x, "epsilom", LINEAR)


def test_the_record_says_what_ran() -> None:
    unet = tiny_unet()
    record = Network(unet, "v", LINEAR, (1, 8, 8), origin={"source": "here"}, card={"seed": 3}).describe()
    assert record | {"weights": None} == {
        "source": "here", "class": "UNet2DModel", "parameters": sum(p.numel() for p in unet.parameters()),
        "parametrization": "v", "schedule": "linear", "sigmas": list(LINEAR.range), "label": None, "weights": None,
        "value_range": [-1, 1], "call": "net(x, t)", "notes": []}
    assert len(record["weights"]) == 64


def test_the_hash_is_that_of_the_weights() -> None:
    first, other = tiny_unet(), tiny_unet()
    hashes = [Network(model, "epsilon", LINEAR).describe()["weights"] for model in (first, other)]
    other.conv_in.weight.data[-1, -1, -1, -1] += 1e-3
    assert hashes[0] == hashes[1] != Network(other, "epsilon", LINEAR).describe()["weights"]


def test_a_callable_has_no_weights_to_record() -> None:
    record = Network(lambda z, sigma: z, "denoised", SigmaSchedule(), card={"a": 1}).describe()
    assert record["weights"] is record["parameters"] is None and record["sigmas"] == [0, None]
