"""Runs the tests of the ops again with TRITON_INTERPRET=1: what checked the references checks the kernels.

Triton reads the variable when it is imported, hence the process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
OPS = (
    "test_dispatch.py",
    "test_lora_shrink.py",
    "test_lora_embedding_shrink.py",
    "test_lora_expand.py",
    "test_lora_add.py",
    "test_rms_norm.py",
    "test_activation.py",
    "test_qk_norm_rope.py",
    "test_decode_attention.py",
    "test_fp8_quantize.py",
    "test_linear.py",
    "test_lora_linear.py",
    "test_lora_silu_and_mul.py",
)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this run is the interpreted one")
def test_kernels_in_the_interpreter_equal_their_references() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(FOLDER / op for op in OPS)],
        cwd=FOLDER.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
