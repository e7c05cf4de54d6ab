import pytest
import torch

from tensorrt_lora.bench.linear_bench import LinearBench, LinearTiming
from tensorrt_lora.bench.linear_case import LinearCase, LinearShape, projection_shapes
from tensorrt_lora.cli.kernels import _totals

CPU = torch.device("cpu")


def test_shapes_are_those_of_the_model() -> None:
    assert projection_shapes("qwen3-32b-fp8") == [
        LinearShape("qkv", 10240, 5120),
        LinearShape("o", 5120, 8192),
        LinearShape("gate_up", 51200, 5120),
        LinearShape("down", 5120, 25600),
    ]


def test_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="kernels are timed on a CUDA device"):
        LinearBench(["qwen3-8b-fp8"], [1], ["rows"], device=CPU, sweep=False)


@pytest.mark.parametrize("name", ["cuBLAS, bf16", "quantise, linear, rows", "quantise, linear, blocks"])
def test_candidates_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorrt_lora.bench.linear_case._ROTATED_BYTES", 1)
    case = LinearCase(LinearShape("o", 128, 256), CPU)
    case.with_tokens(3)
    candidate = next(candidate for candidate in case.fixed_candidates() if candidate.name == name)
    assert candidate.weight_bytes == 128 * 256 * (2 if name == "cuBLAS, bf16" else 1)
    error = (candidate.call(0).float() - case.expected).norm() / case.expected.norm()
    assert 0.01 < error < 0.06
    assert not torch.equal(candidate.call(0), candidate.call(1)), "copies differ"


def test_totals_leave_out_what_did_not_run() -> None:
    timings = [
        LinearTiming("p", "qkv", 1, "a", 1e-5, 1e12, 0.0),
        LinearTiming("p", "o", 1, "a", 3e-5, 3e12, 0.0),
        LinearTiming("p", "o", 1, "b", 0.0, 0.0, 0.0, problem="RuntimeError: no"),
    ]
    lines = _totals(timings)
    assert len(lines) == 2 and "40.0 us" in lines[1] and "2.50 TB/s" in lines[1]
