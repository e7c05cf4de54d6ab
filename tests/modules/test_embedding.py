import torch

from tensorrt_lora.modules.embedding import Embedding, LMHead

CPU = torch.device("cpu")


def test_embedding_rows_and_head_products() -> None:
    embedding = Embedding(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    head = LMHead(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    embedding.weight.normal_()
    head.weight.normal_()
    ids = torch.tensor([6, 0, 6])
    assert torch.equal(embedding(ids), embedding.weight[ids])
    hidden = torch.randn(2, 4)
    torch.testing.assert_close(head(hidden), hidden @ head.weight.T)


def test_a_tied_head_is_the_embeddings_parameter() -> None:
    embedding = Embedding(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    head = LMHead(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU, tied_to=embedding)
    assert head.weight is embedding.weight
