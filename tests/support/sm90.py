"""Compiles Triton kernels for sm_90 on a machine without a GPU, with the specialisation of a real launch."""

import re
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
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, object],
    num_warps: int,
    num_stages: int,
    max_registers: int | None = None,
) -> Resources:
    """Compile `kernel` with `pointers` (name -> element type), `constants`, and 32-bit integers for the rest.

    Arguments are taken as divisible by 16, except those that the kernel does not specialise on.
    """
    compiled = _compile(kernel, pointers, constants, num_warps, num_stages, max_registers)
    registers, stack = _registers_and_stack(compiled.asm["cubin"])
    return Resources(compiled.metadata.shared, registers, stack)


def assembly_sm90(
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, object],
    num_warps: int,
    stage: str = "ptx",
    num_stages: int = 3,
) -> str:
    """The same as text: "ptx", or "ttgir", where every tensor says how threads share it."""
    return str(_compile(kernel, pointers, constants, num_warps, num_stages).asm[stage])


def read_before_wait(kernel: Any, pointers: dict[str, str], ptx: str) -> set[str]:
    """Names of the pointers behind whose addresses something is read ahead of `griddepcontrol.wait`, on any path.

    Raises AssertionError if a path writes before it waits, or does not wait.
    """
    names = [param.name for param in kernel.params if not param.is_constexpr]
    sources: dict[str, set[str]] = {}  # register -> pointers it was computed from
    read: set[str] = set()
    jumps: dict[str, bool] = {}  # label -> whether all paths that jump there have waited
    waited, falls_through = False, True
    for line in ptx.splitlines():
        if label := re.match(r"(\$L__BB\w+):", line):
            waited = (waited or not falls_through) and jumps.get(label[1], True)
            falls_through = True
        if parameter := re.search(r"ld\.param\S+\s+(%\w+), \[\w+_param_(\d+)\]", line):
            # Beyond the arguments are Triton's own.
            sources[parameter[1]] = set(names[int(parameter[2]) :][:1]) & pointers.keys()
            continue
        if "griddepcontrol.wait" in line:
            waited = True
        if jump := re.search(r"bra(?:\.uni)?\s+(\$\w+);", line):
            jumps[jump[1]] = jumps.get(jump[1], True) and waited
            falls_through = "@" in line
        if "ret;" in line:
            assert waited, "a path ends without a wait"
            falls_through = False
        code = line.split("//")[0]
        if not waited:
            assert not re.search(r"(st|atom|red)\.global|cp\.async(?!\.bulk\.prefetch)", code), code
        target, *operands = re.findall(r"%\w+", re.sub(r"@!?%\w+", "", code)) or [""]
        if "ld.global" in code:
            address = sources.get(re.findall(r"\[\s*(%\w+)", code)[0], set())
            read |= set() if waited else address
            for register in re.findall(r"%\w+", code.partition("{")[2].partition("}")[0]):
                sources[register] = address
        elif target:
            sources[target] = set().union(*(sources.get(register, set()) for register in operands))
    return read


def _compile(
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, object],
    num_warps: int,
    num_stages: int,
    max_registers: int | None = None,
) -> Any:
    signature, attributes = {}, {}
    for index, param in enumerate(kernel.params):
        if param.is_constexpr:
            signature[param.name] = "constexpr"
            continue
        signature[param.name] = "*" + pointers[param.name] if param.name in pointers else "i32"
        if not (param.do_not_specialize or param.do_not_specialize_on_alignment):
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": max_registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _registers_and_stack(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = dict(field.split(":", 1) for field in usage.split() if ":" in field)
    return int(fields["REG"]), int(fields["STACK"])
