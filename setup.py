"""Metadata and dependencies of the package. Hardware is looked at when the engine starts, never here."""

from setuptools import find_packages, setup

_SERVE = [
    "fastapi>=0.115,<1",
    "httptools>=0.6,<1",
    "llguidance>=1.3,<2",
    "prometheus-client>=0.20,<1",
    "uvicorn>=0.30,<1",
    "uvloop>=0.19,<1; platform_system == 'Linux'",
]

setup(
    name="tensorrt_lora",
    version="0.1.0",
    description="Serves one base model with many LoRA adapters in one batch, in TensorRT-LLM's PyTorch-backend style.",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["tensorrt_lora", "tensorrt_lora.*"]),
    package_data={"tensorrt_lora.lora.plan_tables": ["*.json"]},
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.11,<3",
        "triton>=3.4,<4; platform_system == 'Linux'",
        "transformers>=5.0,<6",
        "safetensors>=0.4,<1",
        "huggingface_hub>=1.0,<3",
        "pydantic>=2.7,<3",
        "numpy>=1.26,<3",
        "pyyaml>=6,<7",
        "regex>=2024.4",
        "rich>=13,<16",
        "typer>=0.12,<1",
    ],
    extras_require={
        "cuda": ["flashinfer-python>=0.6.14,<0.7"],
        "bench": ["matplotlib>=3.8,<4"],
        "demo": ["gguf>=0.17,<1", "peft>=0.18,<1"],
        "serve": _SERVE,
        "dev": [
            *_SERVE,
            "accelerate>=1.10,<2",
            "gguf>=0.17,<1",
            "httpx>=0.27,<1",
            "hypothesis>=6.100,<7",
            "matplotlib>=3.8,<4",
            "mypy>=2.4,<3",
            "openai>=1.50,<4",
            "peft>=0.21,<0.22",  # the oracle: its file formats and messages are asserted
            "pytest>=9,<10",
            "pytest-timeout>=2.3,<3",
            "ruff>=0.17.6,<0.18",
            "schemathesis>=4,<5",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["tensorrt-lora = tensorrt_lora.cli.main:app"]},
)
