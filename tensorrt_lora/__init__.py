"""Serves one base model with many LoRA adapters in one batch.

Owns the list of public names. A name is imported when it is first used, so that reading settings needs no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorrt_lora.adapters.adapter_error import AdapterError
    from tensorrt_lora.adapters.adapter_report import AdapterReport
    from tensorrt_lora.adapters.adapter_status import AdapterStatus
    from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
    from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
    from tensorrt_lora.config.kv_cache_config import KvCacheConfig
    from tensorrt_lora.config.llm_args import TorchLlmArgs
    from tensorrt_lora.config.lora_config import LoraConfig
    from tensorrt_lora.config.peft_cache_config import PeftCacheConfig
    from tensorrt_lora.config.quant_config import QuantConfig
    from tensorrt_lora.config.scheduler_config import SchedulerConfig
    from tensorrt_lora.engine.engine_stats import EngineStats
    from tensorrt_lora.llmapi.llm import LLM
    from tensorrt_lora.llmapi.request_output import CompletionOutput, RequestOutput
    from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
    from tensorrt_lora.sampling_params import Logprob, SamplingParams

__version__ = "0.1.0"

_HOME: dict[str, str] = {
    "AdapterError": "tensorrt_lora.adapters.adapter_error",
    "AdapterReport": "tensorrt_lora.adapters.adapter_report",
    "AdapterStatus": "tensorrt_lora.adapters.adapter_status",
    "CompletionOutput": "tensorrt_lora.llmapi.request_output",
    "CudaGraphConfig": "tensorrt_lora.config.cuda_graph_config",
    "EngineStats": "tensorrt_lora.engine.engine_stats",
    "GuidedDecodingParams": "tensorrt_lora.config.guided_decoding_params",
    "KvCacheConfig": "tensorrt_lora.config.kv_cache_config",
    "LLM": "tensorrt_lora.llmapi.llm",
    "LoRARequest": "tensorrt_lora.lora_request",
    "Logprob": "tensorrt_lora.sampling_params",
    "LoraConfig": "tensorrt_lora.config.lora_config",
    "PeftCacheConfig": "tensorrt_lora.config.peft_cache_config",
    "QuantConfig": "tensorrt_lora.config.quant_config",
    "RequestOutput": "tensorrt_lora.llmapi.request_output",
    "SamplingParams": "tensorrt_lora.sampling_params",
    "SchedulerConfig": "tensorrt_lora.config.scheduler_config",
    "TorchLlmArgs": "tensorrt_lora.config.llm_args",
    "WeightedLoRARequests": "tensorrt_lora.lora_request",
}

__all__ = [
    "LLM",
    "AdapterError",
    "AdapterReport",
    "AdapterStatus",
    "CompletionOutput",
    "CudaGraphConfig",
    "EngineStats",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoRARequest",
    "Logprob",
    "LoraConfig",
    "PeftCacheConfig",
    "QuantConfig",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "TorchLlmArgs",
    "WeightedLoRARequests",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
