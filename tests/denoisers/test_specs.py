"""Denoisers as text: `name:option=value,...`, with several values as candidates."""

import pytest

from scorelens.data import load_images
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.types import ScorelensError


def test_plain_names_and_options():
    assert parse_specs("wiener") == [Spec("wiener")]
    assert parse_specs("locality:threshold=0.05,rank=9,softmax=batch-mean") == [
        Spec("locality", {"threshold": 0.05, "rank": 9, "softmax": "batch-mean"})]
    assert type(parse_specs("locality:rank=9")[0].options["rank"]) is int
    assert parse_specs("locality:threshold=1e-3")[0].options == {"threshold": 0.001}


def test_several_values_are_every_combination():
    found = parse_specs("locality:threshold=0.1/0.2,rank=3/4")
    assert [spec.options for spec in found] == [
        {"threshold": t, "rank": r} for t in (0.1, 0.2) for r in (3, 4)]


@pytest.mark.parametrize("text", ["wiener", "locality:threshold=0.05,softmax=batch-mean"])
def test_text_and_back(text):
    (spec,) = parse_specs(text)
    assert str(spec) == text and parse_specs(str(spec)) == [spec]


def test_labels_are_for_people():
    spec = Spec("locality", {"threshold": 0.05, "softmax": "batch-mean"})
    assert spec.label == "locality, threshold 0.05, batch-mean"


def test_a_spec_builds_what_it_says():
    model = Spec("locality", {"temperature": 2.0}).build(load_images("digits", limit=20))
    assert model.temperature == 2.0


@pytest.mark.parametrize(("text", "says"), [
    ("localty", "did you mean 'locality'"),
    ("locality:treshold=0.1", "did you mean 'threshold'"),
    ("locality:threshold", "expected option=value"),
    ("locality:threshold=", "expected option=value")])
def test_mistakes_are_named(text, says):
    with pytest.raises(ScorelensError, match=says):
        parse_specs(text)


def test_an_installed_package_adds_a_denoiser(monkeypatch, capsys):
    """Through the entry-point group scorelens.denoisers: in Python, in specs and on the command line."""
    from importlib.metadata import EntryPoint

    from scorelens.cli.parser import main
    from scorelens.denoisers import build_denoiser, denoiser_names, registry

    entry = EntryPoint("grey", "tests.denoisers.test_specs:grey", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.GROUP else [])
    images = load_images("digits", limit=5)
    assert denoiser_names()[-1] == "grey"
    assert build_denoiser("grey", images, level=0.5)(images[:2], 1.0).unique().tolist() == [0.5]
    assert parse_specs("grey:level=0.25")[0].build(images)(images[:1], 1.0).unique().tolist() == [0.25]
    assert main(["sample", "--data", "digits", "--denoiser", "grey", "--help"]) == 0
    assert "--denoiser.level" in capsys.readouterr().out
    with pytest.raises(ScorelensError, match="did you mean 'grey'"):
        build_denoiser("gray", images)


def grey(images, *, level: float = 0.0):
    """The same grey everywhere.

    Args:
        images: the training images.
        level: of grey.
    """
    return lambda z, sigma: z * 0 + level


@pytest.mark.parametrize("text, says", [
    ("locality:threshold=x", "threshold must be a finite number, got 'x'"),
    ("locality:threshold=nan", "threshold must be a finite number"),
    ("locality:rank=1.5", "rank must be a whole number, got 1.5"),
    ("wiener:rank=x", "rank must be a whole number"),
    ("els:patch_size=3.5", "patch_size must be a whole number or text, got 3.5"),
    ("locality:mask_rule=mine", "mask_rule"),
    ("wiener:stats=x", "stats must be an object"),
    ("measured:per_pixel=1", "per_pixel must be true or false"),
    ("measured:samples=100000000000000000000", "samples must fit in 64 bits"),
    ("kernel-locality:tile=100000000000000000000", "tile must fit in 64 bits"),
    ("golden:seed=-1", "seed must be at least 0, got -1"),
    ("smoothed:draws=1000000000000", "draws would need .* GB"),
])
def test_values_of_another_type_are_refused(text, says):
    digits = load_images("digits", limit=5)
    with pytest.raises(ScorelensError, match=says):
        parse_specs(text)[0].build(digits)


def test_no_more_clusters_than_patches():
    digits = load_images("digits", limit=5)
    assert parse_specs("els:clusters=20,seed=4294967299")[0].build(digits)(digits[:1], 1.0).shape == (1, 1, 8, 8)
    with pytest.raises(ScorelensError, match="clusters must be at most the 320 patches, got 1000000"):
        parse_specs("els:clusters=1000000")[0].build(digits)(digits[:1], 1.0)
