"""An engine on the CPU that pads and replays steps as it does on a GPU; a "graph" is the forward, run again.

What it shows is all that the host does around graphs: which step runs in which, static inputs, padding, what is read
of the static output. What it cannot show is what a captured graph has baked in.
"""

from collections.abc import Callable, Sequence

import pytest
import torch

from tensorrt_lora.attention_backend.interface import AttentionMetadata
from tensorrt_lora.attention_backend.vanilla import VanillaAttention, VanillaAttentionMetadata
from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine import model_engine
from tensorrt_lora.engine.cuda_graph_runner import CUDAGraphRunner, GraphKey
from tensorrt_lora.engine.model_engine import PyTorchModelEngine
from tensorrt_lora.engine.model_loader import load_model


class ReplayingRunner(CUDAGraphRunner):
    """Has the sizes of a runner on CUDA. Static outputs are filled with NaN before each replay."""

    def __init__(
        self, config: CudaGraphConfig | None, max_batch_size: int, max_num_tokens: int = 0, *, device: torch.device
    ) -> None:
        super().__init__(config, max_batch_size, max_num_tokens, device=torch.device("cuda"))
        self.replayed: list[GraphKey] = []
        self._forwards: dict[GraphKey, Callable[[GraphKey], torch.Tensor]] = {}
        self._static: dict[bool, torch.Tensor] = {}

    @torch.inference_mode()
    def capture(
        self,
        keys: Sequence[GraphKey],
        prepare: Callable[[GraphKey], None],
        forward: Callable[[GraphKey], torch.Tensor],
        *,
        progress: bool,
    ) -> None:
        for key in sorted(keys, key=lambda key: -key.batch_size):
            prepare(key)
            result = forward(key)
            assert result.shape[0] == key.batch_size and result.isfinite().all()
            self._static.setdefault(key.is_prefill, torch.empty_like(result))
            self._forwards[key] = forward

    def replay(self, key: GraphKey) -> torch.Tensor:
        self.replayed.append(key)
        self.num_replays += 1
        for output in self._static.values():
            output.fill_(float("nan"))
        output = self._static[key.is_prefill][: key.batch_size]
        return output.copy_(self._forwards[key](key))


class _StaticMetadata(VanillaAttentionMetadata):
    """Metadata that a graph would have: for exactly so many rows."""

    def prepare(self, batch: object) -> None:
        super().prepare(batch)
        assert self.num_tokens == self.max_num_tokens


class _GraphReadyMetadata(VanillaAttentionMetadata):
    def create_cuda_graph_metadata(self, batch_size: int) -> AttentionMetadata:
        return self._create(batch_size, batch_size)

    def create_prefill_graph_metadata(self, num_tokens: int, num_requests: int) -> AttentionMetadata:
        return self._create(num_tokens, num_requests)

    def _create(self, num_tokens: int, num_requests: int) -> AttentionMetadata:
        return _StaticMetadata(
            kv_cache=self.kv_cache,
            num_heads=self.num_heads,
            max_num_requests=num_requests,
            max_num_tokens=num_tokens,
            use_cuda_graph=False,
        )


class _GraphReadyAttention(VanillaAttention):
    Metadata = _GraphReadyMetadata
    supports_cuda_graph = True


def make_replayed_engine(
    args: TorchLlmArgs, monkeypatch: pytest.MonkeyPatch
) -> tuple[PyTorchModelEngine, ReplayingRunner, model_engine.LoadedModel]:
    """An engine with "graphs", and the model that it was made for."""
    monkeypatch.setattr(model_engine, "CUDAGraphRunner", ReplayingRunner)
    loaded = load_model(args, progress=False)
    loaded.attention_backend = _GraphReadyAttention
    engine = PyTorchModelEngine(args, loaded, progress=False)
    assert isinstance(engine.graph_runner, ReplayingRunner)
    return engine, engine.graph_runner, loaded
