"""Token ids and positions of one step, at addresses that a captured graph can rely on; all copies are asynchronous."""

import numpy as np
import torch

from tensorrt_lora.utils.pinned_staging import PinnedStaging


class InputBuffers:
    """One device buffer for the ids and positions of a step; its layout depends on the number of tokens alone."""

    def __init__(self, *, max_num_tokens: int, max_batch_size: int, device: torch.device) -> None:
        self._device_buffer = torch.zeros(2 * max_num_tokens, dtype=torch.int64, device=device)
        self._staging = PinnedStaging(self._device_buffer)
        self._in_flight_rows = torch.zeros(2 * max_batch_size, dtype=torch.int64, device=device)
        self._in_flight_staging = PinnedStaging(self._in_flight_rows)
        self._sampled_rows = torch.zeros(max_batch_size, dtype=torch.int64, device=device)
        self._sampled_staging = PinnedStaging(self._sampled_rows)

    def write(self, input_ids: np.ndarray, position_ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy both (int64 [T]) in stream order with one transfer, and return their views on the device."""
        self._staging.copy(np.concatenate([input_ids, position_ids]))
        return self.views(input_ids.shape[0])

    def views(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(input_ids, position_ids) of a step of `num_tokens`, as last written."""
        return self._device_buffer[:num_tokens], self._device_buffer[num_tokens : 2 * num_tokens]

    def fill_in_flight(self, rows: list[int], token_ids: torch.Tensor, sources: list[int]) -> None:
        """After `write`: input_ids[rows[i]] = token_ids[sources[i]], for tokens that only the device knows."""
        count = len(rows)
        self._in_flight_staging.copy(np.array([*rows, *sources], dtype=np.int64))
        target, source = self._in_flight_rows[: 2 * count].split(count)
        self._device_buffer.index_copy_(0, target, token_ids.index_select(0, source))

    def sampled_rows(self, rows: list[int]) -> torch.Tensor:
        """The rows of a step's output that are sampled, on the device, int64 [len(rows)]; valid until the next call."""
        self._sampled_staging.copy(np.array(rows, dtype=np.int64))
        return self._sampled_rows[: len(rows)]
