import pytest

from tensorrt_lora.bench.plan_options import PlanOptions
from tensorrt_lora.lora.batch_kind import BatchKind
from tensorrt_lora.lora.lora_plans import ProjectionShape


def test_shapes_are_measured_once() -> None:
    options = PlanOptions(presets=("qwen3-8b-fp8", "llama-3.1-8b-fp8-block", "qwen3-8b-bf16"))
    shapes = {name: projection.shape for name, projection in options.projections().items()}
    assert len(set(shapes.values())) == len(shapes)
    assert shapes["qwen3-8b-fp8 q+k+v"] == ProjectionShape(4096, 6144, 1)
    assert shapes["qwen3-8b-bf16 q+k+v"] == ProjectionShape(4096, 6144, 2)
    # Attention is alike in the two models, the feed-forward blocks are not.
    assert [name for name in shapes if name.startswith("llama")] == [
        "llama-3.1-8b-fp8-block gate+up",
        "llama-3.1-8b-fp8-block down",
    ]


def test_kinds() -> None:
    options = PlanOptions(presets=("tiny",), tokens=(4, 1), ranks=(16,), adapters=3)
    one, few, many = options.kinds(16)
    assert (one, few, many) == (BatchKind(1, False, 16), BatchKind(4, False, 16), BatchKind(4, True, 16))
    assert [options.distinct_adapters(kind) for kind in (one, few, many)] == [1, 1, 3]
    assert not any(kind.many for kind in PlanOptions(presets=("tiny",), adapters=1).kinds(16))


@pytest.mark.parametrize("wrong", [{"tokens": (0, 1)}, {"ranks": ()}, {"adapters": 0}])
def test_values_out_of_bounds(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PlanOptions.model_validate({"presets": ("tiny",), **wrong})
