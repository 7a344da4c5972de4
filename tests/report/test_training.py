"""Pictures and cards of a training."""

from PIL import Image

from scorelens.report.training import model_card, training_figure


def test_the_picture_has_a_second_panel_where_agreement_is_known(tmp_path):
    losses = [1 / (k + 1) for k in range(50)]
    training_figure(losses, 8, title="one").savefig(tmp_path / "one.png")
    training_figure(losses, 8, title="two", agreement=[(100, 0.5), (400, 0.9)]).savefig(tmp_path / "two.png")
    training_figure([0.5], 8, title="a training of one step").savefig(tmp_path / "short.png")
    widths = []
    for name in ("one", "two", "short"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            widths.append(picture.width)
    assert widths[1] > widths[0] == widths[2]


def test_the_card_tells_what_was_measured():
    card = {"network": "unet", "preset": "small", "parameters": 1234, "prediction": "x0", "steps": 10, "batch": 4,
            "images_seen": 40, "seconds": 120.0, "learning_rate": 0.001, "dropout": 0.0, "ema": 0.9, "seed": 7,
            "precision": "float32", "loss": 0.25, "sizes": {"decay": False},
            "data": {"name": "digits", "split": "train", "count": 30, "shape": [1, 8, 8], "fingerprint": "abc"},
            "environment": {"device": "cpu", "versions": {"torch": "2.9"}}}
    text = model_card("mine", card)
    for told in ("# mine", "1,234 parameters", "x0", "`abc`", "2 minutes on cpu", "seed 7", "0.2500", "torch 2.9"):
        assert told in text
    assert "half cosine" not in text and "stored as" not in text and "r2 between" not in text
    r2 = {"mean": 0.91, "std": 0.05, "low": 0.9, "high": 0.92}
    found = {"with": "other", "steps": 10, "noise_seeds": [0, 127], "curve": [{"images_seen": 40, "r2": r2}]}
    text = model_card("mine", {**card, "half_precision": {"used": True, "r2": 0.99999}, "agreement": found})
    assert "float16 (samples" in text and "| 40 " in text and "0.910" in text and "other, noise seeds 0–127" in text
