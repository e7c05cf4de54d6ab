"""Which fields of an adapter_config.json are served, and what is said about the others.

Owns the verdict per field of PEFT's `LoraConfig`, also for fields of later versions. Called by
`PeftConfigParser`, which reads the values of the served ones.
"""

from reprlib import Repr

from tensorrt_lora.adapters.adapter_error import AdapterProblems

_READ = {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "base_model_name_or_path"}
_READ |= {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"}
_READ |= {"use_dora", "lora_bias", "bias", "ensure_weight_tying"}
_CHECKED = {"peft_type", "task_type", "init_lora_weights"}

# Fields of training, bookkeeping or merging: they never change what trained A and B compute. `fan_in_fan_out`
# is among them because it tells how the base weight is laid out; A is [r, in] and B [out, r] either way.
_NO_EFFECT = {"auto_mapping", "inference_mode", "lora_dropout", "megatron_core", "peft_version", "revision"}
_NO_EFFECT |= {"runtime_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config"}
_NO_EFFECT |= {"fan_in_fan_out", "qalora_group_size"}
_NO_EFFECT |= {"lora_dtype", "lorap_lr_ratio", "lorap_emb_lr", "swift_type"}  # ms-swift's additions

_NOT_SERVED = {
    "use_qalora": "QALoRA is not served; train with use_qalora=false",
    "use_bdlora": "block-diagonal LoRA is not served; train without it",
    "modules_to_save": "fully trained modules are not served; train without modules_to_save",
    "trainable_token_indices": "trained token embeddings are not served; train without this field",
    "target_parameters": "LoRA on bare parameters (MoE experts) is not served; target linear modules",
    "layer_replication": "replicated layers are not served; train on the base model's own layers",
    "alora_invocation_tokens": "activated LoRA (aLoRA) is not served; train a plain LoRA",
    "arrow_config": "Arrow routing is not served; serve its adapters one by one",
    "kasa_config": "KaSA is not served; train a plain LoRA",
    "monteclora_config": "MonteCLoRA is not served; train a plain LoRA",
    "velora_config": "VeLoRA is not served; train a plain LoRA",
    "megatron_config": "Megatron layers are not served; export the adapter for the Hugging Face model",
}

# Starting points that leave the base weights as they are. PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ change the
# base as training starts; A and B fit no other base until PEFT converts them, which sets the field to true.
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")

_REPR = Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


def check_features(raw: dict[str, object], problems: AdapterProblems) -> bool:
    """Add every field of `raw` that asks for something that is not served, or not known, to `problems`.

    Returns whether it is a LoRA adapter at all, so that its fields and tensors mean what they do in LoRA.
    """
    checks: tuple[tuple[str, tuple[object, ...], str], ...] = (
        ("peft_type", ("LORA",), "only LORA adapters are served; train a LoRA"),
        (
            "task_type",
            (None, "CAUSAL_LM"),
            "only causal language models are served; set CAUSAL_LM if it is one",
        ),
        (
            "init_lora_weights",
            _PLAIN_INITS,
            "this start changes the base weights; save the adapter with PEFT's "
            "path_initial_model_for_weight_conversion, which makes it a plain LoRA",
        ),
    )
    refusals = [(field, reason) for field, served, reason in checks if not _is_one_of(raw.get(field), served)]
    refusals += [(field, why) for field, why in _NOT_SERVED.items() if not _is_neutral(raw.get(field))]
    for field in sorted(raw.keys() - _READ - _CHECKED - _NO_EFFECT - _NOT_SERVED.keys()):
        if not _is_neutral(raw[field]):
            refusals.append((field, "unknown field; remove it if it does not change what the adapter computes"))
    for field, reason in refusals:
        problems.add(f"adapter_config.json: {field}={shorten(raw.get(field))}: {reason}")
    return _is_one_of(raw.get("peft_type"), ("LORA",))


def shorten(value: object) -> str:
    """`value` for a message, at most 80 characters; never raises, however large or deep the value is."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        text = f"{type(value).__name__} with too many digits to show"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_one_of(value: object, served: tuple[object, ...]) -> bool:
    # By type too: to Python, 1 equals True.
    return any(type(value) is type(choice) and value == choice for choice in served)


def _is_neutral(value: object) -> bool:
    """Null, false and empty values mean "not used" in every field of PEFT."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)
