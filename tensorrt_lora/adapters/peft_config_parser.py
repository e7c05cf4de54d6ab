"""From the JSON of an adapter_config.json to a checked `PeftConfig`.

Owns which fields are served, which only mattered in training, and what is said about all others. Called by
`read_peft_checkpoint`. Knows no tensors and no model.
"""

import math
import re

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_config import PeftConfig

_SERVED = {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules"}
_SERVED |= {"layers_to_transform", "layers_pattern", "base_model_name_or_path"}
_CHECKED = {"peft_type", "task_type", "bias", "init_lora_weights"}

# Fields that change training, bookkeeping or merging, never what trained A and B compute. `fan_in_fan_out` tells how the
# base weight is laid out; A and B are (r, in) and (out, r) either way.
_NO_EFFECT = {"auto_mapping", "inference_mode", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision"}
_NO_EFFECT |= {"runtime_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"}
_NO_EFFECT |= {"fan_in_fan_out", "lora_dtype", "lorap_lr_ratio", "lorap_emb_lr", "swift_type"}

_NOT_SERVED = {
    "use_dora": "DoRA is not served yet; train with use_dora=false or merge the adapter into its base model",
    "use_qalora": "QALoRA is not served; train with use_qalora=false",
    "use_bdlora": "block-diagonal LoRA is not served; train without it",
    "lora_bias": "a bias on lora_B is not served yet; train with lora_bias=false",
    "modules_to_save": "fully trained modules are not served yet; train without modules_to_save",
    "trainable_token_indices": "trained token embeddings are not served yet; train without trainable_token_indices",
    "target_parameters": "LoRA on bare parameters (MoE experts) is not served yet; target linear modules",
    "layer_replication": "replicated layers are not served; train on the base model's own layers",
    "alora_invocation_tokens": "activated LoRA (aLoRA) is not served yet; train a plain LoRA",
    "arrow_config": "Arrow routing is not served; load its adapters one by one",
    "kasa_config": "KaSA is not served; train a plain LoRA",
    "monteclora_config": "MonteCLoRA is not served; train a plain LoRA",
    "velora_config": "VeLoRA is not served; train a plain LoRA",
    "megatron_config": "Megatron layers are not served; export the adapter for the Hugging Face model",
}
_CAUSAL_TASKS = (None, "CAUSAL_LM")
# Starting points that leave the base weights as they are. PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ change the base at the start
# of training, so that their A and B fit no other base until PEFT has converted them, which sets the field to true.
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica")


class PeftConfigParser:
    """Parses one configuration; whatever is wrong or not served goes to `problems`."""

    def __init__(self, raw: dict[str, object], problems: AdapterProblems) -> None:
        self._raw = raw
        self._problems = problems

    def parse(self) -> PeftConfig:
        """The checked configuration. Raises AdapterError listing every field that is malformed or not served."""
        self._check_features()
        config = PeftConfig(
            r=self._rank("r", self._raw.get("r", 8)),
            lora_alpha=self._alpha("lora_alpha", self._raw.get("lora_alpha", 8)),
            use_rslora=self._flag("use_rslora"),
            rank_pattern={p: self._rank(f"rank_pattern[{p!r}]", v) for p, v in self._patterns("rank_pattern").items()},
            alpha_pattern={p: self._alpha(f"alpha_pattern[{p!r}]", v) for p, v in self._patterns("alpha_pattern").items()},
            target_modules=self._names("target_modules"),
            exclude_modules=self._names("exclude_modules"),
            layers_to_transform=self._layers(),
            layers_pattern=self._layers_pattern(),
            base_model=self._base_model(),
        )
        if not config.target_modules:
            self._problems.add(
                "adapter_config.json: target_modules is empty, so PEFT would apply nothing; name the modules that the "
                "adapter was trained on"
            )
        if isinstance(config.target_modules, str) and (config.layers_to_transform or config.layers_pattern):
            self._problems.add(
                "adapter_config.json: layers_to_transform and layers_pattern need target_modules to be a list; put the "
                "layers into the regular expression"
            )
        if config.layers_pattern and not config.layers_to_transform:
            self._problems.add("adapter_config.json: layers_pattern needs layers_to_transform; remove it or name the layers")
        self._problems.check()
        return config

    def _check_features(self) -> None:
        self._check_choice("peft_type", "only LORA adapters are served", ("LORA",))
        self._check_choice("task_type", "only causal language models are served; set CAUSAL_LM if it is one", _CAUSAL_TASKS)
        self._check_choice("bias", "trained base biases are not served yet; train with bias='none'", (None, "none"))
        init = self._raw.get("init_lora_weights")
        if not (init is None or isinstance(init, bool) or init in _PLAIN_INITS):
            self._refuse(
                "init_lora_weights",
                "this start changes the base weights; save the adapter with PEFT's "
                "path_initial_model_for_weight_conversion, which makes it a plain LoRA",
            )
        for field, reason in _NOT_SERVED.items():
            if not _is_neutral(self._raw.get(field)):
                self._refuse(field, reason)
        for field in sorted(self._raw.keys() - _SERVED - _CHECKED - _NO_EFFECT - _NOT_SERVED.keys()):
            if not _is_neutral(self._raw[field]):
                self._refuse(field, "this field is not known here; remove it if it does not change what the adapter computes")

    def _check_choice(self, field: str, reason: str, allowed: tuple[str | None, ...]) -> None:
        value = self._raw.get(field)
        if not (value is None or isinstance(value, str)) or value not in allowed:
            self._refuse(field, reason)

    def _refuse(self, field: str, reason: str) -> None:
        self._problems.add(f"adapter_config.json: {field}={_shorten(self._raw.get(field))}: {reason}")

    def _wrong(self, field: str, value: object, wanted: str) -> None:
        self._problems.add(f"adapter_config.json: {field}={_shorten(value)}: must be {wanted}")

    def _rank(self, field: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self._wrong(field, value, "an integer >= 1")
        return 1

    def _alpha(self, field: str, value: object) -> float:
        try:
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return value
        except OverflowError:  # an integer beyond the range of float
            pass
        self._wrong(field, value, "a finite number")
        return 1.0

    def _flag(self, field: str) -> bool:
        value = self._raw.get(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(field, value, "true or false")
        return False

    def _patterns(self, field: str) -> dict[str, object]:
        value = self._raw.get(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(field, value, "an object from name patterns to numbers")
            return {}
        for pattern in value:
            self._check_regex(field, pattern, rf"(.*\.)?({pattern})$")
        return value

    def _names(self, field: str) -> tuple[str, ...] | str:
        value = self._raw.get(field)
        if value is None:
            return ()
        if isinstance(value, str):
            self._check_regex(field, value, value)
            return value
        return self._strings(field, value, "a list of module names, or one regular expression")

    def _layers(self) -> tuple[int, ...]:
        value = self._raw.get("layers_to_transform")
        layers = value if isinstance(value, list) else [] if value is None else [value]
        if all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers):
            return tuple(layers)
        self._wrong("layers_to_transform", value, "a layer index or a list of them")
        return ()

    def _layers_pattern(self) -> tuple[str, ...]:
        value = self._raw.get("layers_pattern")
        if not value:
            return ()
        names = self._strings("layers_pattern", [value] if isinstance(value, str) else value, "a name or a list of names")
        for pattern in names:
            self._check_regex("layers_pattern", pattern, rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.")
        return names

    def _strings(self, field: str, value: object, wanted: str) -> tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
            return tuple(value)
        self._wrong(field, value, wanted)
        return ()

    def _check_regex(self, field: str, pattern: str, in_use: str) -> None:
        try:
            re.compile(in_use)
        except (re.error, OverflowError, RecursionError) as error:
            self._wrong(field, pattern, f"a regular expression ({error})")

    def _base_model(self) -> str | None:
        value = self._raw.get("base_model_name_or_path")
        return value if isinstance(value, str) and value else None


def _is_neutral(value: object) -> bool:
    """Null, false and empty values say "not used" for every field of PEFT, also for those of later versions."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
