"""Compiles Triton kernels for sm_90 on a machine without a GPU, with the specialisation of a real launch."""

import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_MEMORY_LIMIT = 227 * 1024  # bytes a block can have on sm_90


@dataclass(frozen=True, slots=True)
class Resources:
    """What a program of a compiled kernel takes; spilled registers show as bytes of stack."""

    shared_bytes: int
    registers: int
    stack_bytes: int


def compile_sm90(
    kernel: Any, pointers: dict[str, str], constants: dict[str, object], num_warps: int, num_stages: int
) -> Resources:
    """Compile `kernel` with `pointers` (name -> element type), `constants`, and 32-bit integers for the rest.

    Arguments are taken as divisible by 16, except those that the kernel does not specialise on.
    """
    signature, attributes = {}, {}
    for index, param in enumerate(kernel.params):
        if param.is_constexpr:
            signature[param.name] = "constexpr"
            continue
        signature[param.name] = "*" + pointers[param.name] if param.name in pointers else "i32"
        if not (param.do_not_specialize or param.do_not_specialize_on_alignment):
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    registers, stack = _registers_and_stack(compiled.asm["cubin"])
    return Resources(compiled.metadata.shared, registers, stack)


def _registers_and_stack(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = dict(field.split(":", 1) for field in usage.split() if ":" in field)
    return int(fields["REG"]), int(fields["STACK"])
