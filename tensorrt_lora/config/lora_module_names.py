"""The names of the layers that an adapter may change.

Owns the table from TensorRT-LLM's module names to the leaf names of Hugging Face checkpoints. Read by
`LoraConfig` and by whoever matches adapter tensors with projections. Knows neither layers nor weights.
"""

# TensorRT-LLM's names. `mlp_h_to_4h` is the projection under the activation (gate) and `mlp_gate` the one
# beside it (up); the names read the other way round, and TensorRT-LLM keeps them so.
DEFAULT_HF_MODULES: dict[str, str] = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_qkv": "qkv_proj",
    "attn_dense": "o_proj",
    "mlp_h_to_4h": "gate_proj",
    "mlp_gate": "up_proj",
    "mlp_4h_to_h": "down_proj",
    "mlp_gate_up": "gate_up_proj",
    "embed_tokens": "embed_tokens",
    "lm_head": "lm_head",
}


def check_module_names(names: list[str], where: str) -> None:
    """Raise ValueError when `names` has an unknown or repeated name; the message calls the field `where`."""
    for position, name in enumerate(names):
        if name not in DEFAULT_HF_MODULES:
            hints = [ours for ours, hf_name in DEFAULT_HF_MODULES.items() if hf_name == name]
            hint = f"use {hints[0]!r}" if hints else f"known: {', '.join(DEFAULT_HF_MODULES)}"
            raise ValueError(f"{where} names the unknown module {name!r}; {hint}")
        if name in names[:position]:
            raise ValueError(f"{where} names {name!r} twice: remove one")
