"""Metadata and dependencies of the package. Hardware is looked at when the engine starts, never here."""

from setuptools import find_packages, setup

setup(
    name="tensorrt_lora",
    version="0.1.0",
    description="Serves one base model with many LoRA adapters in one batch, in TensorRT-LLM's PyTorch-backend style.",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["tensorrt_lora", "tensorrt_lora.*"]),
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.11",
        "triton>=3.4; platform_system == 'Linux'",
        "transformers>=5.0,<6",
        "safetensors",
        "huggingface_hub",
        "pydantic>=2.7,<3",
        "numpy",
        "pyyaml",
        "regex",
        "rich",
        "typer",
    ],
    extras_require={
        "cuda": ["flashinfer-python>=0.6.14,<0.7"],
        "bench": ["matplotlib>=3.8"],
        "demo": ["gguf", "peft"],
        "dev": [
            "accelerate",
            "gguf",
            "hypothesis",
            "matplotlib>=3.8",
            "mypy",
            "peft",
            "pytest",
            "pytest-timeout",
            "ruff",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["tensorrt-lora = tensorrt_lora.cli.main:app"]},
)
