"""One LoRA layer applied to one input: the buffers, and which op runs on which side of the join.

Made by `LoraLayer` on the main stream for each call. Knows the tables and the step's batch, no adapters.
"""

import torch

from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_batch import LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_embedding_shrink import lora_embedding_shrink
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_shrink import lora_shrink, num_splits
from tensorrt_lora.lora.lora_plan import LoraPlan


class LoraBranch:
    """What runs beside the base projection (`run`), and what follows the join (`add_to`, or the next op).

    Args:
        x: [..., in], or token ids [...] for the branch of an embedding.
        plan: says whether there is a `delta` of its own; without, the base output is all that is written.
    """

    __slots__ = ("_batch", "_tables", "_x", "batch_shape", "delta", "h")

    def __init__(self, x: torch.Tensor, tables: LoraTables, batch: LoraBatch, plan: LoraPlan) -> None:
        self.batch_shape = x.shape[:-1] if x.is_floating_point() else x.shape
        splits = num_splits(self.batch_shape.numel(), x.shape[-1], x.device) if x.is_floating_point() else 1
        self._x = x.reshape(self.batch_shape.numel(), *x.shape[len(self.batch_shape) :])
        self._tables = tables
        self._batch = batch
        tokens, pool = self._x.shape[0], tables.b_pool
        self.h = pool.new_empty((splits, tables.num_modules, tokens, tables.max_rank), dtype=torch.float32)
        self.delta = pool.new_empty((tokens, pool.shape[1])) if plan.has_delta else None

    def run(self) -> None:
        if self._x.is_floating_point():
            lora_shrink(self._x, self._tables, self._batch, self.h)
        else:
            lora_embedding_shrink(self._x, self._tables, self._batch, self.h)
        if self.delta is not None:
            lora_expand(self.h, self._tables, self._batch, self.delta, accumulate=False)

    def add_to(self, output: torch.Tensor) -> None:
        rows = output.view(-1, output.shape[-1])
        if self.delta is not None:
            lora_add(self.delta, self._tables, self._batch, rows)
        else:
            lora_expand(self.h, self._tables, self._batch, rows, accumulate=True)
