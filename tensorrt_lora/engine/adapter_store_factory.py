"""The adapter store of an engine: what its readers must know of the model, and the limits that the arguments set.

Called by `PyExecutor` once, when the model is loaded.
"""

from collections.abc import Callable

from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.adapters.combined_adapter import AdapterCombiner
from tensorrt_lora.adapters.load_pacer import LoadPacer
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.model_loader import LoadedModel
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.utils.device import pin_memory_available


def create_adapter_store(
    args: TorchLlmArgs, loaded: LoadedModel, read: Callable[[LoRARequest], AdapterWeights] | None, pacer: LoadPacer
) -> AdapterStore | None:
    """None for an engine without LoRA.

    Args:
        read: where adapters come from; None reads PEFT directories. Raises AdapterError.
        pacer: of the reading of PEFT and NeMo files, and of combining.
    """
    if loaded.lora_config is None or loaded.lora_manager is None:
        return None
    pin_memory = pin_memory_available(loaded.device)
    if read is None:
        read = AdapterReader(
            sites=loaded.lora_manager.sites,
            lora_config=loaded.lora_config,
            dtype=loaded.dtype,
            pin_memory=pin_memory,
            base_parameters=DequantizedParameters(loaded.model),
            give_way=pacer.give_way,
        ).read
    return AdapterStore(
        read,
        combine=AdapterCombiner(loaded.lora_config.max_lora_rank, pin_memory, pacer.give_way).combine,
        max_adapters=loaded.lora_config.max_cpu_loras,
        max_bytes=args.peft_cache_config.host_cache_size,
    )
