"""Each filter against transformers' logits warper of the same name, and the draw against its distribution."""

import pytest
import torch
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tensorrt_lora.engine.sampling_filters import apply_min_p, apply_top_k, apply_top_p, draw_tokens

VOCAB = 97
NO_IDS = torch.empty(1, 0, dtype=torch.int64)


def random_scores(rows, *, spread=3.0, masked=False):
    scores = torch.randn(rows, VOCAB) * spread
    if masked:
        scores[torch.rand(rows, VOCAB) < 0.3] = float("-inf")
        scores[:, 5] = 0.0
    return scores


def warp(warper, row):
    return warper(NO_IDS, row[None])[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_top_k_equals_transformers(masked, spread):
    ks = [1, 2, 5, 50, VOCAB, 0]
    scores = random_scores(len(ks), spread=spread, masked=masked)
    result = apply_top_k(scores, torch.tensor(ks)[:, None], max(ks))
    for row, k in enumerate(ks):
        expected = scores[row] if k == 0 else warp(TopKLogitsWarper(k), scores[row])
        assert torch.equal(result[row], expected), f"k={k}"


def test_top_k_keeps_all_that_equal_the_last():
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    kept = apply_top_k(scores, torch.tensor([[2]]), 2).isfinite()
    assert kept.tolist() == [[False, True, True, True, True, False]]
    assert torch.equal(kept[0], warp(TopKLogitsWarper(2), scores[0]).isfinite())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_top_p_equals_transformers(masked, spread):
    ps = [0.01, 0.3, 0.5, 0.9, 0.99, 1.0]
    scores = random_scores(len(ps), spread=spread, masked=masked)
    result = apply_top_p(scores, torch.tensor(ps, dtype=torch.float64)[:, None])
    for row, p in enumerate(ps):
        expected = scores[row] if p == 1.0 else warp(TopPLogitsWarper(p), scores[row])
        assert torch.equal(result[row], expected), f"p={p}"


def test_top_p_reaches_p_with_the_fewest_tokens_and_ties_favour_lower_ids():
    probabilities = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.6, 0.1, 0.2]])
    ps = torch.tensor([[0.6], [0.75]], dtype=torch.float64)
    kept = apply_top_p(probabilities.log(), ps).isfinite()
    assert kept.tolist() == [[True, True, True, False], [False, True, False, True]]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_min_p_equals_transformers(masked, spread):
    ps = [0.0, 0.01, 0.1, 0.5, 0.99, 1.0]
    scores = random_scores(len(ps), spread=spread, masked=masked)
    result = apply_min_p(scores, torch.tensor(ps)[:, None])
    for row, p in enumerate(ps):
        assert torch.equal(result[row], warp(MinPLogitsWarper(p), scores[row])), f"p={p}"


def test_filters_in_sequence_equal_transformers_in_sequence():
    scores = random_scores(64)
    ours = apply_top_k(scores, torch.full((64, 1), 20), 20)
    ours = apply_top_p(ours, torch.full((64, 1), 0.8, dtype=torch.float64))
    ours = apply_min_p(ours, torch.full((64, 1), 0.05))
    theirs = scores
    for warper in (TopKLogitsWarper(20), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)):
        theirs = warper(NO_IDS, theirs)
    assert torch.equal(ours, theirs)


def test_draws_invert_the_cumulative_distribution():
    scores = torch.tensor([0.1, 0.0, 0.4, 0.5]).log()
    uniforms = torch.tensor([0.0, 0.05, 0.0999, 0.1001, 0.3, 0.4999, 0.5001, 0.999999], dtype=torch.float64)
    drawn = draw_tokens(scores.expand(len(uniforms), 4), uniforms)
    assert drawn.tolist() == [0, 0, 0, 2, 2, 2, 3, 3]


def test_draws_follow_the_distribution():
    scores = torch.randn(12) * 2
    scores[3] = float("-inf")
    count = 40_000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count  # evenly spread: counts are exact to one
    drawn = torch.bincount(draw_tokens(scores.expand(count, 12), uniforms), minlength=12)
    torch.testing.assert_close(drawn / count, scores.softmax(-1), atol=2 / count, rtol=0)
    assert drawn[3] == 0


def test_large_vocabularies_and_extreme_uniforms_stay_in_range():
    scores = torch.zeros(3, 300_000)
    below_one = 1 - 2.0**-53
    drawn = draw_tokens(scores, torch.tensor([0.0, 0.5, below_one], dtype=torch.float64))
    assert drawn.tolist() == [0, 150_000, 299_999]


def test_a_row_without_any_candidate_still_gives_an_id_of_the_vocabulary():
    drawn = draw_tokens(torch.full((2, 8), float("-inf")), torch.tensor([0.0, 0.99], dtype=torch.float64))
    assert ((drawn >= 0) & (drawn < 8)).all()
