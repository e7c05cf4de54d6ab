"""The static inputs of a step."""

import numpy as np
import torch

from tensorrt_lora.engine.input_buffers import InputBuffers


def make_buffers() -> InputBuffers:
    return InputBuffers(max_num_tokens=8, max_batch_size=4, device=torch.device("cpu"))


def test_addresses_depend_on_the_number_of_tokens_alone() -> None:
    buffers = make_buffers()
    views = buffers.views(3)
    written = buffers.write(np.array([5, 6, 7]), np.array([0, 1, 2]))
    assert [view.data_ptr() for view in views] == [view.data_ptr() for view in written]
    assert views[0].tolist() == [5, 6, 7] and views[1].tolist() == [0, 1, 2]


def test_tokens_in_flight_are_taken_from_the_device() -> None:
    buffers = make_buffers()
    input_ids, _ = buffers.write(np.array([5, -1, 7, -1]), np.zeros(4, dtype=np.int64))
    buffers.fill_in_flight([1, 3], torch.tensor([40, 41, 42]), [2, 0])
    assert input_ids.tolist() == [5, 42, 7, 40]


def test_sampled_rows_are_as_many_as_were_given() -> None:
    buffers = make_buffers()
    assert buffers.sampled_rows([6, 0, 3]).tolist() == [6, 0, 3]
    assert buffers.sampled_rows([]).tolist() == []
