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


def weighted(z, x, sigma, precisions):
    """precisions: [D, D], row q for output q."""
    out = np.empty_like(z)
    for b, zb in enumerate(z):
        for q, p in enumerate(precisions):
            out[b, q] = softmax(-((zb - x) ** 2 * p).sum(axis=1) / (2 * sigma**2)) @ x[:, q]
    return out


def window_mask(shape, row, column, size):
    """bool [C, H, W]: the window around a place, cut at the border."""
    mask = np.zeros(shape, bool)
    h = size // 2
    mask[:, max(0, row - h):row + h + 1, max(0, column - h):column + h + 1] = True
    return mask


def ls(z, x, sigma, shape, size):
    c, h, w = shape
    keep = [window_mask(shape, row, column, size).ravel() for _ in range(c) for row in range(h) for column in range(w)]
    return masked(z, x, sigma, np.stack(keep))


def _wrapped_patch(image, row, column, size):
    h = size // 2
    _, height, width = image.shape
    rows, columns = [(row + k) % height for k in range(-h, h + 1)], [(column + k) % width for k in range(-h, h + 1)]
    return image[:, rows][:, :, columns].ravel()


def els(z, x, sigma, shape, size, inside):
    """All patches one by one: wholly inside the images, or of images that continue around their borders."""
    _, height, width = shape
    h = size // 2
    rows, columns = (range(h, height - h), range(h, width - h)) if inside else (range(height), range(width))
    places = [(image.reshape(shape), r, s) for image in x for r in rows for s in columns]
    bank = np.stack([_wrapped_patch(image, r, s, size) for image, r, s in places])
    centres = np.stack([image[:, r, s] for image, r, s in places])
    out = np.empty((len(z), *shape))
    for b, zb in enumerate(z):
        for row in range(height):
            for column in range(width):
                query = _wrapped_patch(zb.reshape(shape), row, column, size)
                out[b, :, row, column] = softmax(-((query - bank) ** 2).sum(axis=1) / (2 * sigma**2)) @ centres
    return out.reshape(len(z), -1)


def bbels(z, x, sigma, shape, size):
    """Places are alike if the border cuts their windows alike; what lies beyond it is zero."""
    _, height, width = shape
    h = size // 2
    pad = ((0, 0), (h, h), (h, h))

    def kind(place, length):
        return ("low", place) if place < h else ("high", length - 1 - place) if place >= length - h else ("middle",)

    padded = [np.pad(image.reshape(shape), pad) for image in x]
    out = np.empty((len(z), *shape))
    for b, zb in enumerate(z):
        noisy = np.pad(zb.reshape(shape), pad)
        for row in range(height):
            for column in range(width):
                alike = [(r, s) for r in range(height) for s in range(width) if kind(r, height) == kind(row, height)
                         and kind(s, width) == kind(column, width)]
                query = noisy[:, row:row + size, column:column + size]
                logits = [-((query - image[:, r:r + size, s:s + size]) ** 2).sum() / (2 * sigma**2)
                          for image in padded for r, s in alike]
                centres = [image[:, r + h, s + h] for image in padded for r, s in alike]
                out[b, :, row, column] = softmax(np.array(logits)) @ np.stack(centres)
    return out.reshape(len(z), -1)


def composite(z, x, sigma, windows):
    """windows: bool [q, D]; the posterior mean of each window's pixels given those pixels, averaged over windows."""
    out, count = np.zeros_like(z), windows.sum(axis=0)
    for b, zb in enumerate(z):
        for window in windows:
            weights = softmax(-((zb - x)[:, window] ** 2).sum(axis=1) / (2 * sigma**2))
            out[b, window] += weights @ x[:, window]
    return out / count


def squares(shape, size):
    """All windows inside the image, clipped to its sides; bool [q, D]."""
    _, h, w = shape
    rows, columns = min(size, h), min(size, w)
    found = []
    for row in range(h - rows + 1):
        for column in range(w - columns + 1):
            mask = np.zeros(shape, bool)
            mask[:, row:row + rows, column:column + columns] = True
            found.append(mask.ravel())
    return np.stack(found)


def translations(x, shape):
    """Every circular translation of every image, [N * H * W, D]."""
    c, h, w = shape
    images = x.reshape(-1, *shape)
    moved = [np.roll(images, (r, s), axis=(2, 3)) for r in range(h) for s in range(w)]
    return np.concatenate(moved).reshape(-1, c * h * w)
