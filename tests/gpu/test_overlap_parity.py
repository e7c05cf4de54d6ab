"""Every module that calls the overlap helper: overlapped equals sequential bit for bit, eager and captured.

{Attention, MLP, GatedMLP, Linear} x {eager, captured} x {overlap on, off} x {no adapter, one, several with base rows},
each also against the same module in float32 on the CPU. A graph is captured without adapters and replayed with them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from tensorrt_lora.attention_backend import AttentionBatch, AttentionMetadata, get_attention_backend
from tensorrt_lora.bench.kernel_trace import profile_kernels, stream_use
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.modules.attention import Attention
from tensorrt_lora.modules.gated_mlp import GatedMLP
from tensorrt_lora.modules.linear import Linear
from tensorrt_lora.modules.mlp import MLP
from tensorrt_lora.modules.rotary_embedding import RotaryEmbedding
from tensorrt_lora.utils.multi_stream_utils import with_multi_stream
from tests.support.completed import completed
from tests.support.random_adapters import RandomAdapter, random_adapter

pytestmark = pytest.mark.gpu

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, PAGE = 768, 1536, 8, 2, 128, 16
ROWS = 6
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
Forward = Callable[[torch.Tensor, LoraParams | None], torch.Tensor]

# Per row: which adapter, None for the base model.
ADAPTERS_OF_ROWS: dict[str, list[int | None]] = {
    "none": [None] * ROWS,
    "one": [1] * ROWS,
    "several": [2, None, 1, 3, None, 1],
    "dora and biases": [4, None, 5, 1, None, 6],
}


class LinearBlock(nn.Module):
    """A lone `Linear` below a parent that knows its layer, as o_proj is below `Attention`."""

    def __init__(self, layer_idx: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        lora = LoraLayer(
            module_types=(LoraModuleType.ATTENTION_DENSE,),
            hf_names=("o_proj",),
            in_features=HIDDEN,
            output_sizes=(INTERMEDIATE,),
        )
        self.o_proj = Linear(
            in_features=HIDDEN, out_features=INTERMEDIATE, bias=True, dtype=dtype, device=device, lora=lora
        )

    def forward(self, x: torch.Tensor, lora_params: LoraParams | None) -> torch.Tensor:
        return completed(*self.o_proj.forward_with_delta(x, lora_params, self.layer_idx))


def make_module(name: str, dtype: torch.dtype, device: torch.device) -> nn.Module:
    if name == "Linear":
        return LinearBlock(0, dtype, device)
    if name == "Attention":
        return Attention(
            layer_idx=0,
            hidden_size=HIDDEN,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            qkv_bias=True,
            o_bias=False,
            qk_norm_eps=1e-6,
            rotary_emb=make_rotary(device),
            attn_backend=get_attention_backend("FLASHINFER" if device.type == "cuda" else "VANILLA"),
            dtype=dtype,
            device=device,
        )
    block, act = (GatedMLP, "silu") if name == "GatedMLP" else (MLP, "relu2")
    return block(
        layer_idx=0,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        bias=False,
        hidden_act=act,
        dtype=dtype,
        device=device,
    )


def make_rotary(device: torch.device) -> RotaryEmbedding:
    config = LlamaConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        architectures=["LlamaForCausalLM"],
    )
    return RotaryEmbedding(config=ModelConfig.from_hf(config), max_positions=256, device=device)


@dataclass
class Side:
    """One module on one device, with its LoRA manager and, for attention, its cache."""

    name: str
    dtype: torch.dtype
    device: torch.device
    overlap: bool = False
    module: nn.Module = field(init=False)
    manager: CudaGraphLoraManager = field(init=False)
    metadata: AttentionMetadata | None = None

    def __post_init__(self) -> None:
        self.module = make_module(self.name, self.dtype, self.device)
        generator = torch.Generator().manual_seed(7)
        for parameter in self.module.parameters():
            values = torch.randn(parameter.shape, generator=generator).bfloat16()
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
            parameter.data.copy_((values * scale).bfloat16() + (0 if parameter.dim() > 1 else 1))
        blocks = nn.ModuleDict({"block": self.module})
        self.manager = CudaGraphLoraManager(
            blocks,
            LoraConfig(overlap_lora_and_base=self.overlap, max_lora_rank=33, max_loras=4),
            base_parameters=DequantizedParameters(blocks),
            plan_table=LoraPlanTable(),
            cache_bytes=1 << 30,
            max_num_tokens=ROWS,
            dtype=self.dtype,
            device=self.device,
        )
        if self.name == "Attention":
            self.metadata = self._make_metadata()

    def forward(self, x: torch.Tensor, lora_params: LoraParams | None) -> torch.Tensor:
        if self.name == "Linear":
            return self.module(x, lora_params)
        if self.metadata is None:
            return completed(*self.module(x, lora_params))
        positions = torch.arange(20, 20 + ROWS, device=self.device)
        return completed(*self.module(positions, x, self.metadata, lora_params))

    def adapters(self, batch: str) -> list[RandomAdapter | None]:
        fields: dict[int, dict[str, int]] = {
            1: {"rank": 16},
            2: {"rank": 33},
            3: {"rank": 3},
            4: {"rank": 16, "magnitude": True},
            5: {"rank": 8, "bias": True},
            6: {"rank": 31, "magnitude": True, "base_bias": True},
        }
        made = {
            number: random_adapter(self.manager.sites, number, dtype=self.dtype, **fields[number])
            for number in set(ADAPTERS_OF_ROWS[batch]) - {None}
        }
        return [None if number is None else made[number] for number in ADAPTERS_OF_ROWS[batch]]

    def _make_metadata(self) -> AttentionMetadata:
        generator = torch.Generator().manual_seed(3)
        cache = torch.randn((1, 2 * ROWS + 1, 2, PAGE, KV_HEADS, HEAD_DIM), generator=generator).bfloat16()
        backend = self.module.attn
        eager = type(backend).Metadata(
            kv_cache=cache.to(self.device, self.dtype),
            num_heads=HEADS,
            max_num_requests=ROWS,
            max_num_tokens=ROWS,
            use_cuda_graph=False,
        )
        metadata = eager.create_cuda_graph_metadata(ROWS) if self.device.type == "cuda" else eager
        kv_lens = [21 + row for row in range(ROWS)]
        pages = [[1 + 2 * row, 2 + 2 * row] for row in range(ROWS)]
        metadata.prepare(AttentionBatch(num_contexts=0, query_lens=[1] * ROWS, kv_lens=kv_lens, page_ids=pages))
        return metadata


def prepare(side: Side, adapters: list[RandomAdapter | None], plan: LoraPlan) -> LoraParams:
    params = side.manager.prepare(adapters, [1] * len(adapters), num_padding_tokens=ROWS - len(adapters))
    params["lora_plans"] = LoraPlans(plan)
    return params


def make_run(side: Side, batch: str, x: torch.Tensor, *, captured: bool, plan: LoraPlan) -> Callable[[], torch.Tensor]:
    """Runs the module on the batch; a captured one is captured here, without adapters, and replayed with them."""

    @torch.inference_mode()
    def run_eagerly() -> torch.Tensor:
        with with_multi_stream(True):
            return side.forward(x, prepare(side, side.adapters(batch), plan))

    if not captured:
        return run_eagerly
    with torch.inference_mode(), with_multi_stream(True):
        params = prepare(side, [], plan)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            side.forward(x, params)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = side.forward(x, params)

    @torch.inference_mode()
    def replay() -> torch.Tensor:
        prepare(side, side.adapters(batch), plan)
        output.fill_(float("nan"))
        graph.replay()
        return output.clone()

    return replay


def run(side: Side, batch: str, x: torch.Tensor, *, captured: bool, plan: LoraPlan) -> torch.Tensor:
    return make_run(side, batch, x, captured=captured, plan=plan)()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn((ROWS, HIDDEN), generator=torch.Generator().manual_seed(11)).bfloat16()


@pytest.mark.parametrize("plan", list(LoraPlan), ids=lambda plan: plan.value)
@pytest.mark.parametrize("batch", ADAPTERS_OF_ROWS)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ["Attention", "MLP", "GatedMLP", "Linear"])
def test_overlapped_equals_sequential_and_the_reference(
    name: str, captured: bool, batch: str, plan: LoraPlan, x: torch.Tensor
):
    on, off = (Side(name, torch.bfloat16, CUDA, overlap=overlap) for overlap in (True, False))
    overlapped = run(on, batch, x.to(CUDA), captured=captured, plan=plan)
    sequential = run(off, batch, x.to(CUDA), captured=captured, plan=LoraPlan.SEQUENTIAL)
    assert torch.equal(overlapped, sequential)

    reference = run(Side(name, torch.float32, CPU), batch, x.float(), captured=False, plan=LoraPlan.SHRINK_BESIDE)
    error = (overlapped.cpu().float() - reference).norm() / reference.norm()
    assert error < 1e-2, f"relative error {error:.4f}"
    if batch != "none":
        plain = run(Side(name, torch.float32, CPU), "none", x.float(), captured=False, plan=plan)
        effect = (reference - plain).norm() / plain.norm()
        assert effect > 0.05, "the adapters must matter for this test to mean anything"


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ["Attention", "MLP", "GatedMLP", "Linear"])
def test_a_second_stream_is_used_with_the_flag_and_only_with_it(name: str, captured: bool, x: torch.Tensor):
    for overlap in (True, False):
        side = Side(name, torch.bfloat16, CUDA, overlap=overlap)
        module = make_run(side, "several", x.to(CUDA), captured=captured, plan=LoraPlan.BOTH_BESIDE)
        use = stream_use(profile_kernels(module), pattern="lora")
        assert use.main or use.others, "no LoRA kernel ran"
        assert bool(use.others) is overlap, use
