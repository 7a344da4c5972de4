"""Any denoiser as a drop-in for diffusers' UNet2DModel: its pipelines and schedulers run on closed-form models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scorelens.files import write_json
from scorelens.noise import DiscreteSchedule, beta_schedule, given_sigmas
from scorelens.types import Denoiser, ScorelensError, Shape
from scorelens.validation import check_noisy, unknown

CONFIG = "config.json"
PREDICTIONS = ("epsilon", "sample", "v_prediction")  # as diffusers calls them


class Config(dict[str, Any]):
    """A dictionary whose entries are attributes too, as diffusers' configs are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


@dataclass(frozen=True)
class Output:
    """What a call returns: `sample`, or the first of a tuple."""

    sample: Tensor

    def __getitem__(self, index: int) -> Tensor:
        return (self.sample,)[index]


class AnalyticModel(nn.Module):
    """A denoiser that is called as diffusers calls its networks: model(x_t, t).sample is the noise that it predicts.

    >>> pipeline = DDIMPipeline(unet=AnalyticModel.build("locality", "digits"), scheduler=DDIMScheduler())
    """

    def __init__(self, denoiser: Denoiser, shape: Shape, *, prediction_type: str = "epsilon",
                 schedule: DiscreteSchedule | None = None, origin: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            denoiser: any denoiser(z, sigma) -> x0_hat.
            shape: (C, H, W) of its images.
            prediction_type: what is returned, as the scheduler's setting has it: epsilon, sample or v_prediction.
            schedule: the noise levels of the timesteps, by default DDPM's, as those of diffusers' schedulers.
            origin: what the denoiser was built from, so that the model can be saved: see `build`.
        """
        super().__init__()
        if prediction_type not in PREDICTIONS:
            raise unknown("prediction type", prediction_type, PREDICTIONS)
        c, h, w = shape
        self.denoiser, self.shape, self.schedule = denoiser, shape, schedule or beta_schedule("linear")
        self.config = Config(in_channels=c, out_channels=c, sample_size=h if h == w else (h, w),
                             prediction_type=prediction_type, class_embed_type=None, num_class_embeds=None)
        self._origin = dict(origin or {})
        self.register_buffer("place", torch.zeros(()), persistent=False)  # where the model is, and how precise

    @classmethod
    def build(cls, denoiser: str, data: str, *, data_options: Mapping[str, Any] | None = None,
              prediction_type: str = "epsilon", **options: Any) -> AnalyticModel:
        """A denoiser of `scorelens.DENOISERS` for a source of images, and options of both.

        Args:
            denoiser: its name.
            data: the source: digits, cifar10, folder:PATH, ...
            data_options: of load_images: split, resolution, limit, ...
            prediction_type: what is returned.
            options: of the denoiser.
        """
        from scorelens.data import load_images
        from scorelens.denoisers import build_denoiser

        images = load_images(data, **dict(data_options or {}))
        origin = {"denoiser": denoiser, "options": options, "data": data, "data_options": dict(data_options or {}),
                  "fingerprint": images.fingerprint}
        return cls(build_denoiser(denoiser, images, **options), images.shape, prediction_type=prediction_type,
                   origin=origin)

    @property
    def dtype(self) -> torch.dtype:
        return self._place.dtype

    @property
    def device(self) -> torch.device:
        return self._place.device

    @property
    def _place(self) -> Tensor:
        return self.get_buffer("place")

    def forward(self, sample: Tensor, timestep: float | Tensor, class_labels: Any = None, *,
                return_dict: bool = True) -> Output | tuple[Tensor]:
        """x_t at a timestep to what is predicted of it; the timestep may lie between two of the schedule's."""
        x, sigma = check_noisy(sample, self.shape), self.schedule.sigma(timestep)
        root = math.sqrt(1 + sigma ** 2)  # z = x_t root, root = 1 / sqrt(a)
        z = x * root
        x0 = self.denoiser(z, sigma)
        predicted = {"epsilon": lambda: (z - x0) / sigma, "sample": lambda: x0,
                     "v_prediction": lambda: (z / sigma - x0 * (1 / sigma + sigma)) / root}
        found = predicted[self.config.prediction_type]().to(sample.dtype)
        return Output(found) if return_dict else (found,)

    def save_pretrained(self, folder: str | Path, **unused: Any) -> None:
        """A folder that says how the model was built, and on which data; it does not hold the data."""
        if not self._origin:
            raise ScorelensError("this model was made from a denoiser, not by AnalyticModel.build: what it was built "
                                 "from is not known, and cannot be saved")
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / CONFIG, {"_class_name": type(self).__name__, **self.config, **self._origin,
                                           "sigmas": self.schedule.sigmas.tolist()})

    @classmethod
    def from_pretrained(cls, folder: str | Path, **unused: Any) -> AnalyticModel:
        """Build the model anew; the data must be the same, image for image."""
        path = Path(folder).expanduser() / CONFIG
        try:
            config = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ScorelensError(f"{folder} holds no model saved by AnalyticModel: {error}") from error
        model = cls.build(config["denoiser"], config["data"], data_options=config["data_options"],
                          prediction_type=config["prediction_type"], **config["options"])
        if model._origin["fingerprint"] != config["fingerprint"]:
            raise ScorelensError(f"{config['data']} has changed since the model was saved: its fingerprint is "
                                 f"{model._origin['fingerprint']}, that of the saved model {config['fingerprint']}")
        model.schedule = given_sigmas(config["sigmas"])
        return model
