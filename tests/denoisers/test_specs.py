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
