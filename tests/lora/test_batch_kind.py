from tensorrt_lora.lora.batch_kind import BatchKind, batch_kinds, rank_kinds


def test_ranks_up_to_the_largest() -> None:
    assert rank_kinds(64) == [32, 64]
    assert rank_kinds(8) == [8]
    assert rank_kinds(32) == [32]
    assert rank_kinds(300) == [32, 300]


def test_several_adapters_need_several_tokens_and_slots() -> None:
    one = [BatchKind(4, False, 16), BatchKind(4, False, 32)]
    assert batch_kinds(4, 2, [16, 32]) == [*one, BatchKind(4, True, 16), BatchKind(4, True, 32)]
    assert batch_kinds(4, 1, [16, 32]) == one
    assert batch_kinds(1, 8, [16]) == [BatchKind(1, False, 16)]
