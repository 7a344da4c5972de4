"""Checkpoint files in the layouts of other people: the same x0_hat as by hand, and one line for each bad one."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import scorelens
from scorelens import ScorelensError, seeded_noise
from scorelens.networks.load import load_network
from scorelens.noise import own_sigmas
from tests.networks.foreign import Weights, ddpm_torch, pytorch_ddpm
from tests.networks.layouts import (
    Column,
    Cosine,
    DigitsNet,
    Fraction,
    Generator,
    HalfToHalf,
    HundredSteps,
    OfSigma,
    PredictsX0,
    Table,
    ZeroToOne,
    trained,
)


@pytest.fixture(scope="module")
def digits() -> Any:
    return scorelens.load_images("digits", split="train")


def by_hand(net: DigitsNet, z: Tensor, sigma: float) -> Tensor:
    """x0_hat in [-1, 1] of a network that predicts epsilon, from its own x_t and t."""
    low, high = net.data
    unit, middle = (high - low) / 2, (high + low) / 2
    t = int((net.levels.sigmas - unit * sigma).abs().argmin())
    a = net.levels.alphas[t].item()
    u = unit * z + middle  # the noisy image in the network's data
    eps = DigitsNet.forward(net, (a**0.5 * u).to(z.dtype), torch.full((len(z),), float(t)))
    return ((u - (1 / a - 1) ** 0.5 * eps) - middle) / unit


def same_as_by_hand(network: Any, net: DigitsNet) -> None:
    for sigma in own_sigmas(network.schedule, 10)[[2, 5, 8]].tolist():
        z = 0.3 + sigma * seeded_noise((1, 8, 8), [1, 2])
        with torch.no_grad():
            torch.testing.assert_close(network(z, sigma), by_hand(net, z, sigma), rtol=0, atol=2e-5 * (1 + sigma))


def other(net: nn.Module) -> dict[str, Tensor]:
    """Weights of the same network, early in its training."""
    return {key: value + 0.1 for key, value in net.state_dict().items()}


def prefixed(prefix: str, tensors: dict) -> dict:
    return {prefix + key: value for key, value in tensors.items()}


def adam(net: nn.Module) -> dict[str, Any]:
    again = type(net)()
    optimizer = torch.optim.Adam(again.parameters())
    sum(p.sum() for p in again.parameters()).backward()
    optimizer.step()
    return optimizer.state_dict()


LAYOUTS: dict[str, tuple] = {  # the network, what its author saved, and options
    "wrapped": (DigitsNet, lambda net: {"state_dict": net.state_dict(), "epoch": 3}, {}),
    "prefixed": (DigitsNet, lambda net: prefixed("module._orig_mod.network.", net.state_dict()), {}),
    "with optimizer": (DigitsNet, lambda net: {"model": net.state_dict(), "optimizer": adam(net), "step": 9}, {}),
    "ema beside": (DigitsNet, lambda net: {"model": other(net), "ema": {"shadow": dict(net.named_parameters()),
                                                                        "decay": 0.99}}, {}),
    "[0, 1] data": (ZeroToOne, lambda net: net.state_dict(), {"value_range": (0, 1)}),
    "cosine schedule": (Cosine, lambda net: net.state_dict(), {}),
    "100 steps": (HundredSteps, lambda net: {"net": net.state_dict()}, {}),
    "t as a column": (Column, lambda net: net.state_dict(), {}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_eight_layouts_with_at_most_two_options(tmp_path: Path, digits: Any, layout: str) -> None:
    """Besides the data: the class, and the range of its data where that is another."""
    kind, saved, options = LAYOUTS[layout]
    net = trained(kind)
    torch.save(saved(net), tmp_path / "model.pt")
    network = load_network(tmp_path / "model.pt", images=digits, module=kind, **options)
    assert network.parametrization == "epsilon" and network.shape == (1, 8, 8)
    same_as_by_hand(network, net)
    assert any("predicts epsilon" in note and "called as net(x, t" in note for note in network.notes)


@pytest.mark.parametrize(("kind", "call", "predicts"), [
    (Fraction, "net(x, t / 1000)", "epsilon"), (Table, "net(x, t.long())", "epsilon"),
    (OfSigma, "net(x, sigma)", "denoised"), (PredictsX0, "net(x, t)", "x0")])
def test_calls_and_predictions_are_found_out(digits: Any, kind: type, call: str, predicts: str) -> None:
    """Also for modules in Python: with images, nothing else is needed."""
    network, sigma = load_network(trained(kind), images=digits), float(DigitsNet.levels.sigmas[400])
    assert (network.describe()["call"], network.parametrization) == (call, predicts)
    z = digits[:2] + sigma * seeded_noise((1, 8, 8), [1, 2])
    torch.testing.assert_close(network(z, sigma), by_hand(trained(), z, sigma), rtol=0, atol=1e-4)


def test_a_range_moves_the_noise_levels(digits: Any) -> None:
    """Data in [-0.5, 0.5] have half of our contrast: our sigma is twice the network's."""
    network = load_network(trained(HalfToHalf), images=digits, value_range=(-0.5, 0.5))
    same_as_by_hand(network, trained(HalfToHalf))
    low, high = network.sigma_range
    assert (low, high) == pytest.approx(tuple(2 * each for each in DigitsNet.levels.range))
    with pytest.raises(ScorelensError, match=r"outside this network's noise levels, 0.02"):
        network(torch.zeros(1, 1, 8, 8), 0.01)
    with pytest.raises(ScorelensError, match="value_range must be two increasing numbers"):
        load_network(trained(), parametrization="epsilon", schedule="linear", value_range=(1, 0))


@pytest.mark.parametrize("where", ["model_ema", "ema list", "lucidrains", "dotless", "swa"])
def test_averages_are_preferred_and_said(tmp_path: Path, where: str) -> None:
    net = trained()
    plain, averaged = other(net), net.state_dict()
    content: dict[str, Any] = {
        "model_ema": {"model": plain, "model_ema": averaged}, "swa": {"model": plain, "swa_model": prefixed(
            "module.", averaged)},
        "ema list": {"model": prefixed("module.", plain), "ema": {"shadow_params": list(net.parameters())}},
        "lucidrains": {"model": prefixed("model.", plain), "opt": {"state": {}}, "ema": {
            **prefixed("online_model.model.", plain), **prefixed("ema_model.model.", averaged),
            "step": torch.tensor(3)}},
        "dotless": {"state_dict": {**prefixed("model.net.", plain), **{f"model_ema.net{key.replace('.', '')}": value
                                                                       for key, value in averaged.items()}}}}[where]
    torch.save(content, tmp_path / "model.ckpt")
    network = load_network(tmp_path / "model.ckpt", module=DigitsNet, parametrization="epsilon")
    same_as_by_hand(network, net)
    assert "the averaged ones" in network.notes[0] and network.describe()["weights_of"]
    with pytest.raises(ScorelensError, match="unknown weights in model.ckpt: 'best'"):
        load_network(tmp_path / "model.ckpt", module=DigitsNet, parametrization="epsilon", weights="best")


def test_safetensors_and_modules_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = trained()
    save_file(prefixed("model.", net.state_dict()), tmp_path / "model.safetensors")
    options: Any = {"parametrization": "epsilon"}
    for module in ("tests.networks.layouts:DigitsNet", DigitsNet, DigitsNet(), lambda: DigitsNet()):
        same_as_by_hand(load_network(tmp_path / "model.safetensors", module=module, **options), net)
    (tmp_path / "mine.py").write_text("from tests.networks.layouts import DigitsNet\n\ndef build():\n"
                                      "    return DigitsNet()\n")
    monkeypatch.chdir(tmp_path)
    for module in ("mine:build", f"{tmp_path / 'mine.py'}:build"):
        same_as_by_hand(load_network("model.safetensors", module=module, **options), net)
    for module, message in (("mine", "must be package.module:Class"), ("mine:Nett", "mine has no Nett; its networks: "
                                                                       "DigitsNet"),
                            ("nowhere:Net", "cannot be imported.*No module named"), ("mine:build_", "has no"),
                            (nn.Linear, "Linear cannot be built without arguments"), (dict, "returned dict")):
        refused(message, "model.safetensors", module=module, **options)


def refused(message: str, *args: Any, **options: Any) -> None:
    with pytest.raises(ScorelensError, match=message) as error:
        load_network(*args, **options)
    assert "\n" not in str(error.value)


class Trap:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("sprung",))


def test_bad_files_in_one_line(tmp_path: Path, digits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net, file = trained(), tmp_path / "model.pt"
    whole: Any = net.state_dict()

    def saved(content: Any) -> Path:
        torch.save(content, file)
        return file

    saved(whole)
    file.write_bytes(file.read_bytes()[:-5000])
    refused("model.pt is damaged or not a checkpoint", file, module=DigitsNet, images=digits)
    refused("none of the 2 weights of Generator", saved(whole), module=Generator, images=digits)
    missing = {key: value for key, value in whole.items() if "conv_in" not in key}
    refused(r"2 of \d+ weights are missing, e.g. unet.conv_in.weight \(nearest in the file: unet.conv_im.weight\)",
            saved({**missing, "unet.conv_im.weight": whole["unet.conv_in.weight"]}), module=DigitsNet, images=digits)
    refused(r"unet.conv_in.bias: \[3\] in the file", saved({**whole, "unet.conv_in.bias": torch.zeros(3)}),
            module=DigitsNet, images=digits)
    refused("the file has 1 more, e.g. unet.extra.weight", saved({**whole, "unet.extra.weight": torch.zeros(3, 3)}),
            module=DigitsNet, images=digits)
    refused(r"more than tensors \((posix|nt|os).mkdir\), and can run code.*trust_pickle=True", saved({"a": Trap()}),
            module=DigitsNet, images=digits)
    assert not (tmp_path / "sprung").exists()
    gan = {"generator": Generator().state_dict(), "discriminator": nn.Linear(4, 1).state_dict()}
    refused("Generator cannot be called as net.x, t.* is it a diffusion network", saved(gan), module=Generator,
            images=digits)
    refused(r"contains 4 tensors \(fc.weight, fc.bias, ...\), but not the code of their network: give module=",
            saved(gan))
    refused("contains no weights", saved({"epoch": 3}), module=DigitsNet)
    refused("contains no weights", file)
    refused("specify what this network predicts.*or give images=", saved(whole), module=DigitsNet)
    refused("DigitsNet does not denoise: at best", saved(other(net)), module=DigitsNet, images=digits)
    refused("there is no file", tmp_path / "nothing.pt")
    refused("there is no file runs/nothing.pt", "runs/nothing.pt")
    refused("there is no folder", tmp_path / "nothing")
    file.write_bytes(b"not a checkpoint")
    refused("model.pt is damaged", file, module=DigitsNet, trust_pickle=True)


def test_a_network_that_does_not_denoise_is_said(tmp_path: Path, digits: Any) -> None:
    torch.save(other(trained()), tmp_path / "model.pt")
    network = load_network(tmp_path / "model.pt", module=DigitsNet, images=digits, parametrization="epsilon")
    assert "assumed" in network.notes[-1] and "times a trivial filter's: check" in network.notes[-1]


class Preconditioned(nn.Module):
    """What EDM pickles: D(x, sigma, class_labels) in float32, which knows its images and classes."""

    def __init__(self, label_dim: int = 0) -> None:
        super().__init__()
        self.img_resolution, self.img_channels, self.label_dim = 8, 1, label_dim
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, sigma: Tensor, class_labels: Tensor | None = None) -> Tensor:
        assert x.dtype == torch.float32
        sigma = sigma.reshape(-1, 1, 1, 1)
        shift = 0 if class_labels is None else class_labels.reshape(-1, self.label_dim).argmax(1).view(-1, 1, 1, 1)
        return self.weight * x / (1 + sigma**2) + shift


def test_edm_pickles_with_consent(tmp_path: Path) -> None:
    file = tmp_path / "edm.pkl"
    file.write_bytes(pickle.dumps({"ema": Preconditioned(), "augment_pipe": None, "loss_fn": None}))
    refused("is a pickle with more than tensors, .*trust_pickle=True", file)
    network = load_network(file, trust_pickle=True, shape=(1, 8, 8))
    z = seeded_noise((1, 8, 8), [0, 1])
    torch.testing.assert_close(network(z, 3.0), z / 20)
    torch.testing.assert_close(network(z.double(), 3.0), z.double() / 20)
    assert network.parametrization == "denoised" and network.shape == (1, 8, 8) and "ema" in network.notes[0]
    refused("edm.pkl expects 1 x 8 x 8 images, the data are 3 x 8 x 8", file, trust_pickle=True, shape=(3, 8, 8))
    file.write_bytes(pickle.dumps({"ema": Preconditioned(4)}))
    torch.testing.assert_close(load_network(file, trust_pickle=True, label=2)(z, 3.0), z / 20 + 2)
    refused("edm.pkl has no class 4; its labels are 0 ... 3", file, trust_pickle=True, label=4)
    file.write_bytes(pickle.dumps({"ema": Preconditioned()}).replace(b"test_checkpoints", b"test_checkpointz"))
    refused("edm.pkl needs the code that it was saved with .*PYTHONPATH", file, trust_pickle=True)


@pytest.mark.parametrize("forward", [pytorch_ddpm, ddpm_torch])
def test_unets_that_need_no_module(tmp_path: Path, forward: Any) -> None:
    """The weights of two repositories say all about their U-Net; of the averages and the others, the averages."""
    weights, x, t = Weights(), seeded_noise((1, 8, 8), [1, 2]), torch.tensor([400, 400])
    with torch.no_grad():
        eps = forward(weights, x, t, 32, (1, 2))
    torch.save({"model": {f"module.{key}": 2 * value for key, value in weights.items() if "timembedding.0" not in key},
                "ema": {"decay": 0.9, "shadow": dict(weights)}}, tmp_path / "ckpt_epoch_200.pt")
    network = load_network(tmp_path / "ckpt_epoch_200.pt", parametrization="epsilon", shape=(1, 8, 8))
    sigma = float(DigitsNet.levels.sigmas[400])
    expected = (x - sigma / (1 + sigma**2) ** 0.5 * eps) * (1 + sigma**2) ** 0.5
    torch.testing.assert_close(network(x * (1 + sigma**2) ** 0.5, sigma), expected, rtol=0, atol=1e-4)
    assert "ema.shadow, the averaged ones" in network.notes[0]


PAPER = {"mnist": ("mnist", (1, 28, 28)), "celeba-hq": ("celeba_hq", (3, 64, 64))}


@pytest.mark.parametrize("name", PAPER)
def test_networks_of_the_paper(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local copy of the hub's folder, of any depth; widths are read from the weights, here small ones."""
    folder, shape = PAPER[name]
    weights = Weights()
    with torch.no_grad():
        pytorch_ddpm(weights, torch.zeros(1, shape[0], 8, 8), torch.tensor([0]), 32, (1, 2))
    file = tmp_path / "models" / "baseline_unet" / folder / "ckpt_epoch_200.pt"
    file.parent.mkdir(parents=True)
    torch.save({"model_state_dict": dict(weights), "epoch": 200}, file)
    for root in (tmp_path, tmp_path / "models", tmp_path / "models" / "baseline_unet"):
        network = load_network(f"paper:{name}", root=root, shape=shape)
        assert (network.parametrization, network.schedule.kind, network.shape) == ("epsilon", "linear", shape)
    monkeypatch.setenv("SCORELENS_DATA", str(tmp_path))
    assert load_network(f"paper:{name}").describe()["source"] == f"paper:{name}"
    refused(f"paper:{name} expects {' x '.join(map(str, shape))} images, the data are 1 x 8 x 8", f"paper:{name}",
            shape=(1, 8, 8))
    refused("unknown network of the paper 'cifar', did you mean 'cifar10'", "paper:cifar")


def test_the_way_out_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*args: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    refused(r"paper:cifar10 is not at .*cifar10/ckpt_epoch_200.pt and could not be downloaded \(no network\); "
            r"where there is a network: hf download ottogin/locality-diffusion-baselines --local-dir DIR, then give "
            r"--root DIR",
            "paper:cifar10", root=tmp_path)
