"""Networks of other people: folders saved by diffusers give the x0 that diffusers gives; bad ones one line each."""

import json
import logging
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import diffusers
import huggingface_hub
import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from safetensors.torch import load_file, save_file
from torch import nn

from scorelens import ScorelensError, check_denoiser, seeded_noise
from scorelens.networks import load
from scorelens.networks.load import load_network
from scorelens.noise import beta_schedule
from tests.networks.makers import diffusers_x0, save_pipeline, tiny_dit, tiny_unet

STEPS = (0, 1, 333, 998, 999)
WEIGHTS = "diffusion_pytorch_model.safetensors"


def same_as_diffusers(network: Any, model: nn.Module, scheduler: Any, steps: tuple = STEPS, **options: Any) -> None:
    """x0 to 1e-5 (1 + sigma) at these integer steps of the scheduler."""
    channels, size = model.config.in_channels, model.config.sample_size
    for t in steps:
        a = scheduler.alphas_cumprod[t].double()
        sigma = ((1 - a) / a).sqrt().item()
        z = 0.5 + sigma * seeded_noise((channels, size, size), [t, t + 1])
        expected = diffusers_x0(model, scheduler, z, t, **options)[:, :channels]
        torch.testing.assert_close(network(z, sigma), expected, rtol=0, atol=1e-5 * (1 + sigma))


def refused(message: str, *args: Any, **options: Any) -> None:
    """One line, which says so."""
    with pytest.raises(ScorelensError, match=message) as error:
        load_network(*args, **options)
    assert "\n" not in str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_pipeline(tmp_path / "net", tiny_unet(), DDPMScheduler())


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("betas", [
    {}, {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012},
    {"beta_schedule": "squaredcos_cap_v2"}, {"trained_betas": torch.linspace(1e-3, 0.01, 1000).tolist()}],
    ids=["linear", "scaled", "cosine", "given"])
def test_a_unet_gives_the_x0_of_diffusers(tmp_path: Path, betas: dict, prediction: str) -> None:
    model, scheduler = tiny_unet(), DDPMScheduler(**betas, prediction_type=prediction)
    network = load_network(str(save_pipeline(tmp_path / "net", model, scheduler)))
    same_as_diffusers(network, model, scheduler)
    assert network.shape == (1, 8, 8)
    assert network.describe()["prediction_type"] == prediction
    assert network.describe()["scheduler"] == "DDPMScheduler"


@pytest.mark.parametrize("changes", [
    {"block_out_channels": (4, 8, 12), "layers_per_block": 2, "in_channels": 3, "out_channels": 3, "sample_size": 12,
     "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"), "add_attention": False,
     "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")},
    {"resnet_time_scale_shift": "scale_shift", "freq_shift": 1, "flip_sin_to_cos": False, "out_channels": 2},
    {"down_block_types": ("DownBlock2D", "ResnetDownsampleBlock2D"), "center_input_sample": True}],
    ids=["wide", "learned variance", "centred"])
def test_other_peoples_unets(tmp_path: Path, changes: dict) -> None:
    model = tiny_unet(**changes)
    learned = {"variance_type": "learned_range"} if model.config.out_channels == 2 else {}
    scheduler = DDPMScheduler(**learned)
    network = load_network(save_pipeline(tmp_path / "net", model, scheduler), shape=_shape(model))
    same_as_diffusers(network, model, scheduler)
    check_denoiser(network)


def _shape(model: nn.Module) -> tuple[int, int, int]:
    return (model.config.in_channels, model.config.sample_size, model.config.sample_size)


@pytest.mark.parametrize("name", ["DDIMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler",
                                  "LMSDiscreteScheduler", "EulerDiscreteScheduler", "HeunDiscreteScheduler"])
def test_any_scheduler_with_betas(tmp_path: Path, name: str) -> None:
    """Their defaults differ, and hold for keys that the config leaves out."""
    model, scheduler = tiny_unet(), getattr(diffusers, name)()
    path = save_pipeline(tmp_path / "net", model, scheduler)
    (path / "scheduler" / "scheduler_config.json").write_text(json.dumps({"_class_name": name}))
    plain = DDPMScheduler(beta_start=scheduler.config.beta_start, beta_end=scheduler.config.beta_end)
    same_as_diffusers(load_network(path), model, plain, steps=(0, 500, 999))


@pytest.mark.parametrize("betas", [None, torch.linspace(1e-4, 0.02, 1000).tolist()], ids=["linear", "given"])
def test_zero_terminal_snr_has_no_last_step(tmp_path: Path, betas: list | None) -> None:
    model = tiny_unet()
    scheduler = DDPMScheduler(rescale_betas_zero_snr=True, trained_betas=betas, prediction_type="v_prediction")
    network = load_network(save_pipeline(tmp_path / "net", model, scheduler))
    same_as_diffusers(network, model, scheduler, steps=(0, 500, 998))
    with pytest.raises(ScorelensError, match="outside this network's noise levels, 0.010001 to 15406"):
        network(torch.zeros(1, 1, 8, 8), 2e4)


@pytest.mark.parametrize("out_channels", [None, 2])
@pytest.mark.parametrize(("label", "index"), [(None, 3), ("null", 3), (3, 3), (0, 0), (2, 2), ("1", 1)])
def test_a_dit_with_its_classes(tmp_path: Path, label: Any, index: int, out_channels: int | None) -> None:
    model = tiny_dit(out_channels=out_channels)
    scheduler = DDPMScheduler(variance_type="learned_range" if out_channels else "fixed_small")
    network = load_network(save_pipeline(tmp_path / "net", model, scheduler), label=label)
    same_as_diffusers(network, _Expanding(model), scheduler, class_labels=torch.tensor([index, index]))
    assert network.label == network.describe()["label"] == index
    check_denoiser(network)


class _Expanding(nn.Module):
    """A DiT takes t as [B]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, x: torch.Tensor, t: torch.Tensor, **options: Any) -> Any:
        return self.model(x, t.expand(len(x)), **options)


def test_a_unet_with_classes(tmp_path: Path) -> None:
    model, scheduler = tiny_unet(num_class_embeds=4), DDPMScheduler()
    path = save_pipeline(tmp_path / "net", model, scheduler)
    for label in (0, 3):
        same_as_diffusers(load_network(path, label=label), model, scheduler, class_labels=torch.tensor([label] * 2))
    refused(r"conditional on a class: give label=, one of 0 ... 3", path)
    for label in (4, -1, "null", "cat"):
        refused(r"has no class .*; its labels are 0 ... 3", path, label=label)


def test_labels_that_do_not_fit(tmp_path: Path, folder: Path) -> None:
    refused("is not conditional on classes; omit the label 2", folder, label=2)
    dit = save_pipeline(tmp_path / "dit", tiny_dit(), DDPMScheduler())
    refused("has no class 4; its labels are 0 ... 2 or null", dit, label=4)


@pytest.mark.parametrize("model", [tiny_unet(), tiny_dit()], ids=["unet", "dit"])
def test_velocity_of_a_flow_scheduler(tmp_path: Path, model: nn.Module) -> None:
    """x_s = (1-s) x0 + s eps, the model called at 500 s: x0 = x_s - s velocity. A shift moves the grid alone."""
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=500, shift=3.0)
    network = load_network(save_pipeline(tmp_path / "net", model, scheduler))
    options = {"class_labels": torch.tensor([3, 3])} if "num_embeds_ada_norm" in model.config else {}
    for s in (0.002, 0.4, 0.998):
        sigma = s / (1 - s)
        z = 0.3 + sigma * seeded_noise((1, 8, 8), [1, 2])
        x_s = (1 - s) * z
        expected = x_s - s * model(x_s, torch.tensor([500 * s] * 2), **options).sample
        torch.testing.assert_close(network(z, sigma), expected, rtol=0, atol=1e-5 * (1 + sigma))
    assert network.describe()["parametrization"] == "velocity"


@pytest.mark.parametrize("layout", ["same folder", "inside", "beside", "pipeline at the root"])
def test_a_models_own_folder(tmp_path: Path, folder: Path, layout: str) -> None:
    scheduler = DDPMScheduler(prediction_type="sample", beta_end=0.01)
    scheduler.save_pretrained(folder / "scheduler")
    path, config = folder / "unet", folder / "scheduler" / "scheduler_config.json"
    if layout != "beside":
        path = shutil.copytree(folder / "unet", tmp_path / "alone" / "model")
    if layout == "inside":
        shutil.copytree(config.parent, path / "scheduler")
    elif layout != "beside":
        shutil.copy(config, path)
    if layout == "pipeline at the root":
        (path / "model_index.json").write_text(json.dumps({"_class_name": "DDPMPipeline", "vae": [None, None],
                                                           "unet": ["diffusers", "UNet2DModel"]}))
    network = load_network(path)
    same_as_diffusers(network, tiny_unet(), scheduler)
    assert "assumed" not in network.describe()


def test_without_a_scheduler_ddpm_is_assumed_and_said(folder: Path) -> None:
    shutil.rmtree(folder / "scheduler")
    network = load_network(folder)
    same_as_diffusers(network, tiny_unet(), DDPMScheduler())
    assert network.describe()["assumed"] == ("no scheduler config: assumed to predict epsilon at linear noise "
                                             "levels")
    assert "assumed" not in load_network(folder, parametrization="v", schedule=beta_schedule()).describe()
    assert load_network(folder, parametrization="velocity").schedule.kind == "flow"


def test_arguments_go_before_the_config(folder: Path) -> None:
    cosine = "squaredcos_cap_v2"
    given = load_network(folder, parametrization="v", schedule=beta_schedule(cosine))
    same_as_diffusers(given, tiny_unet(), DDPMScheduler(prediction_type="v_prediction", beta_schedule=cosine))
    same_as_diffusers(load_network(folder, parametrization="x0"), tiny_unet(), DDPMScheduler(prediction_type="sample"))
    refused("unknown parametrization 'eps', did you mean 'epsilon'", folder, parametrization="eps")


def test_a_diffusers_pipeline_saved_by_itself(tmp_path: Path) -> None:
    model, scheduler = tiny_unet(), diffusers.DDIMScheduler()
    diffusers.DDIMPipeline(model, scheduler).save_pretrained(tmp_path / "pipe")
    (tmp_path / "pipe" / "card.json").write_text('{"seed": 3}')
    network = load_network(tmp_path / "pipe")
    same_as_diffusers(network, model, DDPMScheduler())
    assert network.card == {"seed": 3} and network.describe()["source"] == str(tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["fp16", "sharded", "both", "half"])
def test_other_forms_of_weights(tmp_path: Path, kind: str) -> None:
    """Half-precision files are computed with in float32."""
    model = tiny_unet() if kind == "sharded" else tiny_unet().half()
    options = {"max_shard_size": "8KB"} if kind in ("sharded", "both") else {}
    path = tmp_path / "net"
    model.save_pretrained(path, variant="fp16" if kind in ("fp16", "both") else None, **options)
    assert len(list(path.glob("*.safetensors"))) == (1 if kind in ("fp16", "half") else len(list(path.glob("*-of-*"))))
    network = load_network(path)
    same_as_diffusers(network, model.float(), DDPMScheduler())


def test_weights_of_old_diffusers(folder: Path) -> None:
    """Attention was once named query, key, value, proj_attn: the hub is full of such files."""
    names = {"to_q.": "query.", "to_k.": "key.", "to_v.": "value.", "to_out.0.": "proj_attn."}
    weights = load_file(folder / "unet" / WEIGHTS)
    renamed = {}
    for name, value in weights.items():
        new = next((old for old in names if old in name), None)
        renamed[name.replace(new, names[new]) if new else name] = value
    assert renamed.keys() != weights.keys()
    save_file(renamed, folder / "unet" / WEIGHTS, metadata={"format": "pt"})
    same_as_diffusers(load_network(folder), tiny_unet(), DDPMScheduler())


def test_nothing_is_printed(folder: Path, capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for shards, over which diffusers draws a bar, nor for weights it does not know, of which it warns."""
    monkeypatch.setattr(logging.getLogger("diffusers"), "propagate", True)  # to caplog
    tiny_unet().save_pretrained(folder / "shards", max_shard_size="8KB")
    load_network(folder / "shards")
    save_file({"extra": torch.zeros(2)}, folder / "unet" / WEIGHTS, metadata={"format": "pt"})
    refused("not of the UNet2DModel", folder)
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_size_is_the_datas_where_the_unet_takes_any(tmp_path: Path) -> None:
    path = save_pipeline(tmp_path / "net", tiny_unet(sample_size=None), DDPMScheduler())
    assert load_network(path).shape is None
    network = load_network(path, shape=(1, 12, 6))
    assert network.shape == (1, 12, 6)
    check_denoiser(network)
    refused("multiples of 2, not 12 x 7", path, shape=(1, 12, 7))
    refused("expects 1 x any x any images, the data are 3 x 8 x 8", path, shape=(3, 8, 8))


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 28, 28), (1, 8, 10)])
def test_data_that_do_not_fit_are_refused_before_weights_are_read(folder: Path, shape: tuple) -> None:
    (folder / "unet" / WEIGHTS).unlink()
    refused(f"expects 1 x 8 x 8 images, the data are {shape[0]} x {shape[1]} x {shape[2]}; "
            "convert the data with --channels / --resolution", folder, shape=shape)


def test_the_shape_of_a_rectangle(tmp_path: Path) -> None:
    path = save_pipeline(tmp_path / "net", tiny_unet(sample_size=(8, 6)), DDPMScheduler())
    assert load_network(path, shape=(1, 8, 6)).shape == (1, 8, 6)
    refused("expects 1 x 8 x 6 images, the data are 1 x 6 x 8", path, shape=(1, 6, 8))


def test_damaged_weights(folder: Path) -> None:
    file = folder / "unet" / WEIGHTS
    whole = file.read_bytes()
    for damaged in (whole[:-100], whole[:50], b"", b"\xff" * 500, b"version https://git-lfs.github.com/spec/v1\n"):
        file.write_bytes(damaged)
        refused("the weights in .* are damaged, incomplete or not of the UNet2DModel", folder)


@pytest.mark.parametrize("change", ["missing", "unexpected", "mismatched"])
def test_weights_of_another_network(folder: Path, change: str) -> None:
    weights = load_file(folder / "unet" / WEIGHTS)
    bias = weights.pop("conv_in.bias")
    weights |= {"missing": {}, "unexpected": {"conv_in.bias": bias, "extra": bias.clone()},
                "mismatched": {"conv_in.bias": bias[:3].clone()}}[change]
    save_file(weights, folder / "unet" / WEIGHTS, metadata={"format": "pt"})
    refused("damaged, incomplete or not of the UNet2DModel", folder)


def test_a_pickle_needs_consent(folder: Path) -> None:
    unet, scheduler = tiny_unet(), DDPMScheduler()
    (folder / "unet" / WEIGHTS).unlink()
    torch.save(unet.state_dict(), folder / "unet" / "diffusion_pytorch_model.bin")
    refused(r"as a pickle \(diffusion_pytorch_model.bin\).*trust_pickle=True", folder)
    same_as_diffusers(load_network(folder, trust_pickle=True), unet, scheduler)


class Trap:
    def __reduce__(self) -> Any:
        return (print, ("sprung",))


def test_even_a_trusted_pickle_runs_no_code(folder: Path, capfd: pytest.CaptureFixture) -> None:
    (folder / "unet" / WEIGHTS).unlink()
    torch.save({"conv_in.weight": Trap()}, folder / "unet" / "diffusion_pytorch_model.bin")
    refused("the weights in .* are damaged", folder, trust_pickle=True)
    assert "sprung" not in capfd.readouterr().out


def test_an_index_lets_no_pickle_in(folder: Path) -> None:
    torch.save(tiny_unet().state_dict(), folder / "unet" / "shard.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tiny_unet().state_dict(), "shard.bin")}
    (folder / "unet" / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    refused("names files that are not safetensors", folder)


def test_safetensors_go_before_a_pickle(folder: Path) -> None:
    (folder / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"junk")
    same_as_diffusers(load_network(folder, trust_pickle=True), tiny_unet(), DDPMScheduler(), steps=(5,))


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "unet" / WEIGHTS).unlink()
    refused("contains no weights", folder)
    (folder / "unet" / "model.ckpt").write_bytes(b"junk")
    refused(r"as a pickle \(model.ckpt\)", folder)
    refused("contains no weights: diffusers names them", folder, trust_pickle=True)


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_missing_or_broken_config(folder: Path) -> None:
    config = folder / "unet" / "config.json"
    for text, message in (("{", r"config.json cannot be read as JSON"), ("[1]", "contains a JSON list, not an object")):
        config.write_text(text)
        refused(message, folder)
    config.write_bytes(b"\xff\xfe\x00")
    refused("cannot be read as JSON", folder)
    config.unlink()
    refused("neither unet/config.json nor transformer/config.json nor config.json", folder)


@pytest.mark.parametrize(("changes", "message"), [
    ({"_class_name": "UNet2DConditionModel"}, "unknown network class in .*: 'UNet2DConditionModel'.*known: DiTTr"),
    ({"_class_name": None}, "unknown network class"),
    ({"in_channels": 6}, "takes 6 channels and returns 1"),
    ({"class_embed_type": "timestep"}, "class_embed_type 'timestep'"),
    ({"time_embedding_type": "learned"}, "learned time embedding"),
    ({"block_out_channels": 3}, "config.json of .* does not describe a UNet2DModel"),
    ({"down_block_types": ["NoBlock", "DownBlock2D"]}, "damaged, incomplete or not of the UNet2DModel"),
    ({"block_out_channels": [8, 12]}, "damaged, incomplete or not of the UNet2DModel"),
    ({"mid_block_scale_factor": [0]}, "config.json describes a UNet2DModel that does not work"),
    ({"downsample_padding": -1}, "config.json describes a UNet2DModel that does not work"),
    ({"norm_eps": math.nan}, "does not work: it returns NaN or infinite values")])
def test_configs_that_we_cannot_read(folder: Path, changes: dict, message: str) -> None:
    rewrite(folder / "unet" / "config.json", **changes)
    refused(message, folder)


@pytest.mark.parametrize(("changes", "message"), [
    ({"prediction_type": "flow_prediction"}, "unknown prediction type of .*: 'flow_prediction'.*known: epsilon"),
    ({"prediction_type": None}, "unknown prediction type"),
    ({"beta_schedule": "sigmoid"}, "unknown beta schedule 'sigmoid'"),
    ({"beta_start": "low"}, "scheduler config of .* cannot be read"),
    ({"trained_betas": [0.1]}, "not a noise schedule"), ({"trained_betas": [0.1, 1.5, 0.2]}, "not a noise schedule"),
    ({"trained_betas": ["a"]}, "scheduler config of .* cannot be read"),
    ({"beta_schedule": None}, "unknown beta schedule"),
    ({"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous"}, "timestep_type = 'continuous'"),
    ({"_class_name": "DDIMScheduler", "use_flow_sigmas": True}, "use_flow_sigmas = True"),
    ({"_class_name": "CogVideoXDDIMScheduler"}, "snr_shift_scale = 3.0"),
    ({"_class_name": "FlowMatchEulerDiscreteScheduler", "invert_sigmas": True}, "invert_sigmas = True")])
def test_schedulers_that_we_cannot_read(folder: Path, changes: dict, message: str) -> None:
    rewrite(folder / "scheduler" / "scheduler_config.json", **changes)
    refused(message, folder)


@pytest.mark.parametrize("name", ["EDMEulerScheduler", "ScoreSdeVeScheduler", "IPNDMScheduler", "MyScheduler", None])
def test_schedulers_without_betas(folder: Path, name: str | None) -> None:
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps({"_class_name": name}))
    refused(f"has the unsupported scheduler {name}; supported: those with betas", folder)
    assert load_network(folder, parametrization="epsilon", schedule=beta_schedule()).describe()["parameters"] > 0


def test_pipelines_with_an_autoencoder(folder: Path) -> None:
    """Their networks work on latents; those of other autoencoders than diffusers' two usual ones are refused."""
    assert not load_network(folder).latent
    (folder / "model_index.json").write_text(json.dumps({"vae": ["diffusers", "AutoencoderKL"]}))
    assert load_network(folder).latent and not load_network(folder, latent=False).latent
    (folder / "model_index.json").write_text(json.dumps({"vqvae": ["diffusers", "VQModel"]}))
    refused("is a pipeline with a vqvae; the autoencoders that Scorelens reads are", folder)


def test_names_of_the_zoo_come_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "zoo_folder", {"tiny-unet": folder}.get)
    monkeypatch.setattr(load, "zoo_names", lambda: ["tiny-unet"])
    assert load_network("tiny-unet").describe()["source"] == "tiny-unet"
    refused("unknown network 'tiny-unett', did you mean 'tiny-unet'.*a folder saved by diffusers, a hub id",
            "tiny-unett")


def test_places_that_are_not_there(tmp_path: Path, folder: Path) -> None:
    refused("there is no folder", tmp_path / "nothing")
    refused("there is no folder", str(tmp_path / "nothing"))
    refused("module and weights are options of checkpoint files", folder, weights="ema")


def test_the_weights_of_a_folder_are_that_folder(folder: Path) -> None:
    same_as_diffusers(load_network(folder / "unet" / WEIGHTS), tiny_unet(), DDPMScheduler(), steps=(5,))


def test_a_hub_id_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_network("someone/net-8").describe()["source"] == "someone/net-8"
    load_network("someone/net-8", trust_pickle=True)
    assert asked == [("someone/net-8", ["*.json", "*.safetensors"]),
                     ("someone/net-8", ["*.json", "*.safetensors", "*.bin"])]


def test_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, allow_patterns: list[str]) -> str:
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    refused("someone/net is not a folder and could not be downloaded from the hub: We couldn't connect to the hub",
            "someone/net")


def test_without_diffusers_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    refused("pip install diffusers", folder)


def test_modules_and_callables() -> None:
    """They say what they predict, and at which noise levels where that leaves a choice."""
    model = tiny_unet()
    same_as_diffusers(load_network(model, parametrization="epsilon", schedule=beta_schedule()), model, DDPMScheduler())
    z = seeded_noise((1, 8, 8), [0])
    torch.testing.assert_close(load_network(lambda z, sigma: z / 2, parametrization="denoised")(z, 3.0), z / 2)
    torch.testing.assert_close(load_network(lambda x, t: 0 * x, parametrization="velocity")(z, 3.0), z / 4)
    refused("specify what this network predicts: parametrization=, one of epsilon", model)
    refused("schedule=", model, parametrization="v")


def test_a_module_of_diffusers_knows_its_images_and_classes() -> None:
    options = {"parametrization": "epsilon", "schedule": beta_schedule()}
    network = load_network(tiny_dit(), **options)
    assert network.shape == (1, 8, 8) and network.label == 3
    refused("DiTTransformer2DModel expects 1 x 8 x 8 images", tiny_dit(), shape=(3, 8, 8), **options)
    assert load_network(lambda x, t, class_labels: x, label=2, shape=(3, 4, 4), **options).label == 2
    refused("the label must be a class number", lambda x, t: x, label="null", **options)


def test_float64_and_gradients(folder: Path) -> None:
    network = load_network(folder)
    z = seeded_noise((1, 8, 8), [0], dtype=torch.float64).requires_grad_()
    out = network(z, 1.0)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out.float(), network(z.detach().float(), 1.0), rtol=0, atol=1e-5)
    out.sum().backward()
    assert z.grad.abs().min() > 0 and math.isfinite(z.grad.sum())
    assert re.fullmatch("[0-9a-f]{64}", network.describe()["weights"])


def test_check_denoiser_stays_within_the_noise_levels_a_network_knows(tmp_path: Path) -> None:
    """Stable Diffusion's betas begin at sigma 0.029 and end at 14.6: the paper's grid reaches beyond both."""
    scheduler = DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    network = load_network(save_pipeline(tmp_path / "net", tiny_unet(), scheduler))
    with pytest.raises(ScorelensError, match="0.029"):
        network(torch.zeros(1, *network.shape), 0.01)
    check_denoiser(network)
