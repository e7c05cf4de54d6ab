"""The typed contract between the LoRA manager and the layers: what travels through a forward as `lora_params`."""

from typing import TypedDict

import torch

from tensorrt_lora.lora.cuda_graph_lora_params import CudaGraphLoraParams
from tensorrt_lora.lora.lora_plans import LoraPlans


class LoraParams(TypedDict):
    """TensorRT-LLM's keys. A forward gets None instead when its batch has no adapter row."""

    cuda_graph_params: CudaGraphLoraParams  # slot tables and this step's batch metadata
    use_cuda_graph_mode: bool  # the forward is being captured or replayed
    num_seqs: int  # requests in the batch, padding included
    lora_aux_stream: torch.cuda.Stream | None  # None: LoRA runs after the base, on the same stream
    lora_plans: LoraPlans  # how LoRA runs, projection by projection
