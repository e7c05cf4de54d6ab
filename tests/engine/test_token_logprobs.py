import torch

from tensorrt_lora.engine.token_logprobs import logprob_dict, logprob_table


def test_values_ranks_and_order_against_log_softmax():
    vocab, top = 40, 5
    logits = torch.randn(7, vocab) * 4
    token_ids = torch.randint(vocab, (7,))
    token_ids[0] = logits[0].argmax()
    token_ids[1] = logits[1].argmin()
    table = logprob_table(logits, token_ids, top).numpy()
    expected = logits.double().log_softmax(-1)
    for row, token_id in enumerate(token_ids.tolist()):
        order = expected[row].argsort(descending=True).tolist()
        result = logprob_dict(token_id, table[row], top)
        assert list(result) == [token_id] + [other for other in order[:top] if other != token_id]
        for other, entry in result.items():
            assert abs(entry.logprob - expected[row, other].item()) < 1e-5
            assert entry.rank == order.index(other) + 1


def test_zero_gives_the_token_alone_and_rows_want_different_numbers():
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    table = logprob_table(logits, torch.tensor([3]), 3).numpy()
    assert list(logprob_dict(3, table[0], 0)) == [3]
    assert list(logprob_dict(3, table[0], 1)) == [3, 1]
    assert list(logprob_dict(3, table[0], 3)) == [3, 1, 2]
    none = logprob_table(logits, torch.tensor([3]), 0).numpy()
    assert none.shape == (1, 2) and list(logprob_dict(3, none[0], 0)) == [3]
    assert logprob_dict(3, none[0], 0)[3].rank == 3


def test_more_than_the_vocabulary_gives_the_whole_vocabulary():
    table = logprob_table(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([0]), 20).numpy()
    result = logprob_dict(0, table[0], 20)
    assert list(result) == [0, 1, 2]
    assert abs(sum(torch.tensor(entry.logprob).exp().item() for entry in result.values()) - 1) < 1e-6


def test_equal_logits_share_the_best_rank():
    table = logprob_table(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([1]), 0).numpy()
    assert logprob_dict(1, table[0], 0)[1].rank == 1
