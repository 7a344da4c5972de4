"""Every denoiser once more, by explicit differences in numpy, sharing no code with the library.

`dtype` float64 is the truth; float32 is the plain formula that our own float32 error is measured against.
"""

import numpy as np


def floats(pixels, dtype=np.float64):
    """uint8 [N, C, H, W] -> [N, D] in [-1, 1]"""
    return (pixels.reshape(len(pixels), -1).astype(np.float64) / 127.5 - 1).astype(dtype)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def optimal(z, x, sigma, temperature=1.0):
    out = []
    for zb in z:
        logits = -((zb - x) ** 2).sum(axis=1) / z.dtype.type(2 * sigma**2 * temperature)
        out.append(softmax(logits) @ x)
    return np.stack(out)


def masked(z, x, sigma, keep, temperature=1.0):
    """keep: bool [D, D], row q for output q."""
    out = np.empty_like(z)
    for b, zb in enumerate(z):
        squares = (zb - x) ** 2
        for q, mask in enumerate(keep):
            logits = -squares[:, mask].sum(axis=1) / z.dtype.type(2 * sigma**2 * temperature)
            out[b, q] = softmax(logits) @ x[:, q]
    return out


def batch_mean(z, x, sigma, keep, batch):
    parts = [masked(z, x[start:start + batch], sigma, keep) for start in range(0, len(x), batch)]
    return np.mean(parts, axis=0)


def wiener_matrix(x, sigma):
    """Sigma (Sigma + sigma^2 I)^-1, by a solve rather than an eigendecomposition."""
    covariance = np.cov(x, rowvar=False, ddof=1).reshape(x.shape[1], x.shape[1])
    return np.linalg.solve(covariance + sigma**2 * np.eye(len(covariance)), covariance)


def wiener(z, x, sigma):
    mean = x.mean(axis=0)
    return mean + (z - mean) @ wiener_matrix(x, sigma).T.astype(z.dtype)


def paper_masks(x, sigma, threshold):
    w = np.abs(wiener_matrix(x, sigma))
    return w >= threshold * w.max(axis=1, keepdims=True)


def published_masks(x, sigma, threshold):
    w = wiener_matrix(x, sigma)
    keep = np.zeros(w.shape, bool)
    scaled = np.empty_like(w)
    for i, row in enumerate(w):
        scaled[i] = np.abs(row / (row[i] if row[i] >= 1e-6 else 1.0))
    for q in range(len(w)):
        keep[q] = scaled[:, q] >= threshold * scaled.max()
    return keep


def smoothed(z, x, sigma, draws, scale):
    size = (scale * np.sqrt(1 + sigma**2)).astype(z.dtype)
    return np.mean([optimal(z + size * eps, x, sigma) for eps in draws], axis=0)
