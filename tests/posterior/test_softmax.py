"""The online softmax: any way of cutting and merging the data gives the same posterior."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scorelens.posterior.slots import EveryPixel, OwnPixel
from scorelens.posterior.softmax import chunk_state, merge


def pieces(seed, n, spread, own):
    g = torch.Generator().manual_seed(seed)
    d = 4
    x = torch.randn(d, n, generator=g, dtype=torch.float64)
    distances = spread * torch.rand(2, d if own else 1, n, generator=g, dtype=torch.float64)
    return x, distances, OwnPixel() if own else EveryPixel()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 99), n=st.integers(3, 40), spread=st.sampled_from([0.01, 3.0, 1e4]), own=st.booleans(),
       cuts=st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)))
def test_states_merge_associatively_into_the_plain_softmax(seed, n, spread, own, cuts):
    x, distances, responses = pieces(seed, n, spread, own)
    scale = 0.7
    first, second = sorted(max(1, min(n - 1, int(cut * n))) for cut in cuts)
    spans = [s for s in (slice(0, first), slice(first, second), slice(second, n)) if s.stop > s.start]
    states = [chunk_state(distances[:, :, s].clone(), scale, responses, x[:, s]) for s in spans]
    left, right = None, None
    for state in states:
        left = merge(left, state, scale)
    for state in reversed(states):
        right = merge(right, state, scale)
    weights = torch.softmax(-distances * scale, dim=2)
    expected = (weights * x).sum(2) if own else weights[:, 0] @ x.T
    torch.testing.assert_close(responses.collect(left.mean), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(responses.collect(right.mean), expected, rtol=1e-12, atol=1e-12)


def test_enormous_distances_do_not_overflow():
    x, distances, responses = pieces(0, 10, 1.0, own=True)
    state = chunk_state((distances + 1e30).float(), 1e3, responses, x.float())
    assert torch.isfinite(state.mean).all()
