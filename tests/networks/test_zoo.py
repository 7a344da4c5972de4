"""The committed networks: each keeps the contract, says where it came from, and fits into the repository."""

import json
from pathlib import Path

import pytest
import torch
from tools.zoo import ZOO

from scorelens import check_denoiser, load_images, load_network, zoo_names
from scorelens.networks.zoo import another_seed, zoo_folder
from scorelens.report.training import model_card
from scorelens.types import ScorelensError

# Networks of an earlier recipe: each leaves this list when its successor is committed.
EARLIER = {"cifar10-dit-x0", "cifar10-unet-x0", "digits-dit-x0", "digits-unet-attention", "digits-unet-x0",
           "leaves-unet", "leaves-unet-seed1", "leaves-w00-unet", "leaves-w01-unet", "leaves-w05-unet",
           "mnist-unet-classes", "cifar10-unet-classes", "leaves-latent-unet"}
PRESENT = sorted(set(zoo_names()) - EARLIER)
SEEDED = [name for name in zoo_names() if "agreement" in json.loads((zoo_folder(name) / "card.json").read_text())]


def card(name):
    return json.loads((zoo_folder(name) / "card.json").read_text())


@pytest.mark.parametrize("name", [
    name if name.startswith("digits-") else pytest.param(name, marks=pytest.mark.docs) for name in zoo_names()])
def test_check_denoiser_holds(name):
    check_denoiser(load_network(name))


@pytest.mark.docs
def test_every_network_is_of_the_present_recipe_or_known_to_be_of_an_earlier_one():
    assert {name for name in zoo_names() if name not in ZOO or not ZOO[name].is_that_of(card(name))} == EARLIER


@pytest.mark.docs
@pytest.mark.parametrize("name", PRESENT)
def test_the_card_says_what_was_trained(name):
    """The settings are those of tools/zoo.py, the readable card is generated, and the weights are small."""
    entry, told, folder = ZOO[name], card(name), zoo_folder(name)
    assert (told["network"], told["prediction"], told["seed"]) == (entry.network, entry.prediction, entry.seed)
    assert told["data"]["name"] == entry.data and told["epochs"] == entry.epochs
    assert told["report_card"]["heldout"]["split"] == "test" and len(told["report_card"]["levels"]) == 10
    assert (folder / "README.md").read_text() == model_card(name, told)
    assert {p.name for p in folder.iterdir()} == {
        "card.json", "README.md", "loss.png", "samples.png", "model_index.json", "scheduler",
        "transformer" if entry.network == "dit" else "unet", *(["vae"] if "autoencoder" in entry.load else [])}
    parameters = sum(p.numel() for p in load_network(name)._model.parameters())
    assert parameters == told["parameters"]


@pytest.mark.docs
@pytest.mark.parametrize("name", zoo_names())
def test_no_file_tells_where_it_was_made(name):
    for path in (p for p in zoo_folder(name).rglob("*") if p.suffix in (".json", ".md")):
        assert "_name_or_path" not in path.read_text() and str(Path.home()) not in path.read_text(), path


@pytest.mark.docs
@pytest.mark.parametrize("name", zoo_names())
def test_half_precision_only_where_it_loses_nothing(name):
    check = card(name)["half_precision"]
    assert check["used"] == (1 - check["r2"] < 0.001)
    weights = [p for p in zoo_folder(name).rglob("*.safetensors") if p.parent.name != "vae"]
    size = sum(p.stat().st_size for p in weights)
    assert size < (2.2 if check["used"] else 4.2) * card(name)["parameters"] + 50_000


@pytest.mark.docs
@pytest.mark.parametrize("name", SEEDED)
def test_agreement_of_the_seeds_is_a_curve_that_both_cards_tell(name):
    found, other = card(name)["agreement"], card(another_seed(name))["agreement"]
    assert found["with"] == another_seed(name) and found["noise_seeds"] == [0, 127]
    assert len(found["curve"]) == 7 and found["curve"][-1]["images_seen"] == card(name)["images_seen"]
    ours, theirs = ([point["r2"]["mean"] for point in curve["curve"]] for curve in (found, other))
    for mine, its in zip(ours, theirs, strict=True):  # r2 is nearly symmetric, once high
        assert max(mine, its) < 0.8 or mine == pytest.approx(its, abs=0.1)
    if name.startswith("digits"):
        assert ours[-1] >= 0.9


def test_the_agreement_of_the_digits_is_what_one_measures():
    from scorelens import ddim_sigmas, r2, sample, seeded_noise

    noise, ends = seeded_noise((1, 8, 8), range(128)), []
    with torch.no_grad():
        for name in ("digits-unet", "digits-unet-seed1"):
            ends.append(sample(load_network(name), noise, ddim_sigmas(10)).steps[-1].x0_hat)
    told = card("digits-unet")["agreement"]["curve"][-1]["r2"]["mean"]
    assert r2(*ends).mean().item() == pytest.approx(told, abs=0.002)  # the card is of the float32 weights


def test_embedded_networks_know_the_embedded_data():
    fingerprint = load_images("digits", split="train").fingerprint
    for name in zoo_names():
        if name.startswith("digits"):
            assert card(name)["data"]["fingerprint"] == fingerprint


@pytest.mark.docs
def test_the_zoo_is_small_enough_for_a_repository():
    root = Path(__file__).parents[2]
    places = (root / "zoo", root / "src" / "scorelens" / "zoo")
    assert sum(p.stat().st_size for place in places for p in place.rglob("*") if p.is_file()) < 80e6


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ScorelensError, match="did you mean 'digits-unet'"):
        load_network("digit-unet")


def test_users_may_have_a_zoo_of_their_own(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "card.json").write_text("{}")
    monkeypatch.setenv("SCORELENS_ZOO", str(tmp_path))
    assert "mine" in zoo_names() and zoo_folder("mine") == mine and zoo_folder("digits-unett") is None
