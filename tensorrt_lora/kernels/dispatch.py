"""Which implementation of an op runs: its Triton kernel or its torch reference.

Called by the public op of every file in `kernels/`, and by nothing else; it knows no op.
"""

import torch
import triton

# Triton decides at decoration time whether a kernel is compiled or interpreted, so this is read at import
# too: TRITON_INTERPRET=1 must be set before the first import of `tensorrt_lora`.
_INTERPRETED: bool = bool(triton.knobs.runtime.interpret)

# The interpreter computes bfloat16 wrongly without saying so, and our kernels accumulate in float32.
_INTERPRETER_DTYPES = (torch.float32, torch.float16)


def use_triton(tensor: torch.Tensor) -> bool:
    """Whether an op on `tensor` (its main floating-point input) runs as a Triton kernel.

    True on CUDA, and on any device for float32 and float16 when TRITON_INTERPRET=1; otherwise the torch
    reference runs.
    """
    return tensor.is_cuda or (_INTERPRETED and tensor.dtype in _INTERPRETER_DTYPES)
