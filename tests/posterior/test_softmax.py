"""The online softmax: any way of cutting and merging the data gives the same posterior."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scorelens.posterior.responses import OwnOutput, WholeOutput, collect
from scorelens.posterior.softmax import chunk_state, merge, with_near


def pieces(seed, n, spread, own):
    g = torch.Generator().manual_seed(seed)
    d = 4
    x = torch.randn(d, n, generator=g, dtype=torch.float64)
    distances = spread * torch.rand(2, d if own else 1, n, generator=g, dtype=torch.float64)
    return x, distances, OwnOutput() if own else WholeOutput()


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
    torch.testing.assert_close(collect(left.mean), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(collect(right.mean), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), q=st.integers(1, 40), spread=st.sampled_from([1.0, 30.0, 1e3, 1e6]))
def test_chunks_that_are_far_from_the_best_are_left_out_and_missed_by_no_one(seed, q, spread):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(q, 60, generator=g, dtype=torch.float64)
    distances = spread * torch.rand(1, q, 60, generator=g, dtype=torch.float64)
    parts = list(zip(distances.clone().split(5, dim=2), x.split(5, dim=1), strict=True))
    state = chunk_state(parts[0][0], 0.7, OwnOutput(), parts[0][1])
    left_out = 0
    for part, here in parts[1:]:
        found = with_near(state, part, 0.7, 40 / 0.7, here)
        left_out += found is state
        state = found
    torch.testing.assert_close(state.mean[:, :, 0], (torch.softmax(-distances * 0.7, dim=2) * x).sum(2), rtol=1e-12,
                               atol=1e-12)
    assert left_out == 0 if spread <= 30 else spread < 1e6 or left_out > 0


def test_enormous_distances_do_not_overflow():
    x, distances, responses = pieces(0, 10, 1.0, own=True)
    state = chunk_state((distances + 1e30).float(), 1e3, responses, x.float())
    assert torch.isfinite(state.mean).all()
