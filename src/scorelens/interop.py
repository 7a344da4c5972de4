"""Any denoiser as a drop-in for diffusers' UNet2DModel, for use with its pipelines and schedulers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scorelens.files import write_json
from scorelens.noise import DiscreteSchedule, beta_schedule, given_sigmas
from scorelens.types import Denoiser, ScorelensError, Shape
from scorelens.validation import by_level, check_noisy, unknown

CONFIG = "config.json"
PREDICTIONS = ("epsilon", "sample", "v_prediction")  # diffusers' names


class Config(dict[str, Any]):
    """A dictionary whose entries are also attributes, like diffusers' configs."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Output(NamedTuple):
    """The result of a call: `output.sample` or `output[0]`."""

    sample: Tensor


class AnalyticModel(nn.Module):
    """A denoiser with the interface of diffusers' networks: model(x_t, t).sample is the predicted noise.

    >>> pipeline = DDIMPipeline(unet=AnalyticModel.build("locality", "digits"), scheduler=DDIMScheduler())
    """

    def __init__(self, denoiser: Denoiser, shape: Shape, *, prediction_type: str = "epsilon",
                 schedule: DiscreteSchedule | None = None, origin: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            denoiser: any denoiser(z, sigma) -> x0_hat.
            shape: (C, H, W) of its images.
            prediction_type: what is returned: epsilon, sample or v_prediction. The scheduler must have the same.
            schedule: the noise levels of the timesteps, by default DDPM's, which are also diffusers' default.
            origin: what the denoiser was built from, required to save the model: see `build`.
        """
        super().__init__()
        if prediction_type not in PREDICTIONS:
            raise unknown("prediction type", prediction_type, PREDICTIONS)
        c, h, w = shape
        self.denoiser, self.shape, self.schedule = denoiser, shape, schedule or beta_schedule("linear")
        self.config = Config(in_channels=c, out_channels=c, sample_size=h if h == w else (h, w),
                             prediction_type=prediction_type, class_embed_type=None, num_class_embeds=None)
        self._origin = dict(origin or {})
        self.register_buffer("_device_dtype", torch.zeros(()), persistent=False)  # follows .to()

    @classmethod
    def build(cls, denoiser: str, data: str, *, data_options: Mapping[str, Any] | None = None,
              prediction_type: str = "epsilon", **options: Any) -> AnalyticModel:
        """Build a denoiser of `scorelens.DENOISERS` on a source of images.

        Args:
            denoiser: its name.
            data: the source: digits, cifar10, folder:PATH, ...
            data_options: options of load_images: split, resolution, limit, ...
            prediction_type: what is returned.
            options: of the denoiser.
        """
        from scorelens.data import load_images
        from scorelens.denoisers import build_denoiser

        data_options = dict(data_options or {})
        images = load_images(data, **data_options)
        origin = {"denoiser": denoiser, "options": options, "data": data, "data_options": data_options,
                  "fingerprint": images.fingerprint}
        return cls(build_denoiser(denoiser, images, **options), images.shape, prediction_type=prediction_type,
                   origin=origin)

    @property
    def dtype(self) -> torch.dtype:
        return self.get_buffer("_device_dtype").dtype

    @property
    def device(self) -> torch.device:
        return self.get_buffer("_device_dtype").device

    def forward(self, sample: Tensor, timestep: float | Tensor, class_labels: Any = None, *,
                return_dict: bool = True) -> Output | tuple[Tensor]:
        """The prediction for x_t at a timestep, or at one for each image [B]; they may be fractional.

        `class_labels` is ignored.
        """
        levels = [self.schedule.sigma(t) for t in torch.as_tensor(timestep).flatten().tolist()]
        x, sigma = check_noisy(sample, self.shape), torch.tensor(levels, dtype=torch.float64)
        prediction = by_level(self._predict, x, sigma, "timestep").to(sample.dtype)
        return Output(prediction) if return_dict else (prediction,)

    def _predict(self, x: Tensor, sigma: float) -> Tensor:
        root = math.sqrt(1 + sigma ** 2)  # z = x_t root, root = 1 / sqrt(a)
        z = x * root
        x0 = self.denoiser(z, sigma)
        conversions = {"epsilon": lambda: (z - x0) / sigma, "sample": lambda: x0,
                       "v_prediction": lambda: (z / sigma - x0 * (1 / sigma + sigma)) / root}
        return conversions[self.config.prediction_type]()

    def save_pretrained(self, folder: str | Path, **unused: Any) -> None:
        """Save how the model was built and the fingerprint of its data, not the data themselves."""
        if not self._origin:
            raise ScorelensError("a model made directly from a denoiser cannot be saved; use AnalyticModel.build, "
                                 "which records how it was built")
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / CONFIG, {"_class_name": type(self).__name__, **self.config, **self._origin,
                                           "sigmas": self.schedule.sigmas.tolist()})

    @classmethod
    def from_pretrained(cls, folder: str | Path, **unused: Any) -> AnalyticModel:
        """Rebuild a saved model; raises if its data have changed."""
        path = Path(folder).expanduser() / CONFIG
        try:
            config = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ScorelensError(f"{folder} contains no model saved by AnalyticModel: {error}") from error
        model = cls.build(config["denoiser"], config["data"], data_options=config["data_options"],
                          prediction_type=config["prediction_type"], **config["options"])
        if model._origin["fingerprint"] != config["fingerprint"]:
            raise ScorelensError(f"{config['data']} has changed since the model was saved: its fingerprint is "
                                 f"{model._origin['fingerprint']}, that of the saved model is {config['fingerprint']}")
        model.schedule = given_sigmas(config["sigmas"])
        return model
