"""Scorelens explains image diffusion models by the statistics of their training data."""

from scorelens.analysis.attribution import Attribution, TrajectoryAttribution, attribute, attribute_samples
from scorelens.analysis.comparison import Comparison, compare
from scorelens.analysis.examination import Verdict, explain
from scorelens.analysis.patch_sizes import PatchSizes, fit_patch_sizes
from scorelens.analysis.removal import Removal, removal_effects, without
from scorelens.analysis.report_card import ReportCard, report_card
from scorelens.checks import PropertyError, check_denoiser
from scorelens.data import SOURCES, ImageSet, add_mark, load_images
from scorelens.denoisers import DENOISERS, build_denoiser
from scorelens.jacobian import sensitivity
from scorelens.metrics import bootstrap, memorized, mse, novelty, pearson, precision_recall, r2
from scorelens.networks import load_network, zoo_names
from scorelens.networks.training import Training, train
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.sampling import Guided, Samples, Step, guided, sample, trajectory
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.types import Denoiser, ScorelensError

__version__ = "0.1.0"

__all__ = [
    "DENOISERS",
    "SOURCES",
    "Attribution",
    "Comparison",
    "Denoiser",
    "GaussianStats",
    "Guided",
    "ImageSet",
    "PatchSizes",
    "PropertyError",
    "Removal",
    "ReportCard",
    "Samples",
    "ScorelensError",
    "Step",
    "Training",
    "TrajectoryAttribution",
    "Verdict",
    "add_mark",
    "attribute",
    "attribute_samples",
    "bootstrap",
    "build_denoiser",
    "check_denoiser",
    "compare",
    "ddim_sigmas",
    "explain",
    "fit_gaussian",
    "fit_patch_sizes",
    "guided",
    "load_images",
    "load_network",
    "memorized",
    "mse",
    "novelty",
    "pearson",
    "precision_recall",
    "r2",
    "removal_effects",
    "report_card",
    "sample",
    "seeded_noise",
    "sensitivity",
    "train",
    "trajectory",
    "without",
    "zoo_names",
]
