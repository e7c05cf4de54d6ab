"""From the JSON of an adapter_config.json to a checked `PeftConfig`.

Owns types, bounds and defaults of the fields that are served. Called by `read_peft_checkpoint`. Knows no
tensors and no model.
"""

from typing import Literal

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.name_matcher import MAX_PATTERNS, name_end, pattern_problem
from tensorrt_lora.adapters.peft_config import PeftConfig, layer_prefix
from tensorrt_lora.adapters.peft_features import check_features, shorten

MAX_RANK = 65_536  # beyond any model's width; Python's integers are not
MAX_ALPHA = 1e30  # scales are float32


class PeftConfigParser:
    """Parses one configuration; whatever is wrong or not served goes to `problems`."""

    def __init__(self, raw: dict[str, object], problems: AdapterProblems) -> None:
        self._raw = raw
        self._problems = problems
        self._is_malformed = False

    def parse(self) -> PeftConfig:
        """The configuration, as far as it is served; what is not is left in `problems`, for the caller to raise.

        Raises AdapterError listing all problems when a field is malformed or the adapter is no LoRA at all: then its
        tensors cannot be judged either.
        """
        if not check_features(self._raw, self._problems):
            self._problems.check()
        ranks, alphas = self._patterns("rank_pattern"), self._patterns("alpha_pattern")
        base_model = self._raw.get("base_model_name_or_path")
        config = PeftConfig(
            r=self._rank("r", self._raw.get("r", 8)),
            lora_alpha=self._alpha("lora_alpha", self._raw.get("lora_alpha", 8)),
            use_rslora=self._flag("use_rslora"),
            rank_pattern={p: self._rank(f"rank_pattern[{p!r}]", value) for p, value in ranks.items()},
            alpha_pattern={p: self._alpha(f"alpha_pattern[{p!r}]", value) for p, value in alphas.items()},
            target_modules=self._names("target_modules"),
            exclude_modules=self._names("exclude_modules"),
            layers_to_transform=self._layers(),
            layers_pattern=self._layers_pattern(),
            use_dora=self._flag("use_dora"),
            lora_bias=self._flag("lora_bias"),
            bias=self._bias(),
            ensure_weight_tying=self._flag("ensure_weight_tying"),
            base_model=base_model if isinstance(base_model, str) and base_model else None,
        )
        self._check_targets(config)
        if config.use_dora and config.lora_bias:
            self._add("use_dora and lora_bias exclude each other in PEFT; set the one to false that was not trained")
        if self._is_malformed:
            self._problems.check()
        return config

    def _check_targets(self, config: PeftConfig) -> None:
        if not self._raw.get("target_modules"):
            self._add("target_modules is empty, so PEFT would apply nothing; name the modules that were trained")
        by_layer = bool(config.layers_to_transform or config.layers_pattern)
        if by_layer and isinstance(config.target_modules, str):
            self._add(
                "layers_to_transform and layers_pattern need target_modules to be a list; put the layers "
                "into the regular expression instead"
            )
        if config.layers_pattern and not config.layers_to_transform:
            self._add("layers_pattern needs layers_to_transform; name the layers or remove the pattern")

    def _rank(self, field: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_RANK:
            return value
        self._wrong(field, value, f"an integer >= 1, at most {MAX_RANK}")
        return 1

    def _alpha(self, field: str, value: object) -> float:
        # Python's JSON also reads NaN, Infinity and integers beyond float; the bound excludes them all.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_ALPHA:
            return value
        self._wrong(field, value, f"a finite number, at most {MAX_ALPHA:g} in size")
        return 1.0

    def _flag(self, field: str) -> bool:
        value = self._raw.get(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(field, value, "true or false")
        return False

    def _bias(self) -> Literal["none", "lora_only", "all"]:
        value = self._raw.get("bias")
        if value is None or value == "none":
            return "none"
        if value == "lora_only":
            return "lora_only"
        if value == "all":
            return "all"
        self._wrong("bias", value, "'none', 'lora_only' or 'all'")
        return "none"

    def _patterns(self, field: str) -> dict[str, object]:
        value = self._raw.get(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(field, value, "an object from name patterns to numbers")
            return {}
        for pattern in value:
            self._check_pattern(field, pattern, name_end(pattern))
        self._check_number(field, value)
        return value

    def _names(self, field: str) -> tuple[str, ...] | str:
        value = self._raw.get(field)
        if value is None:
            return ()
        if isinstance(value, str):
            self._check_pattern(field, value, value)
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
        listed = [value] if isinstance(value, str) else value
        patterns = self._strings("layers_pattern", listed, "a name or a list of names")
        for pattern in patterns:
            self._check_pattern("layers_pattern", pattern, layer_prefix(pattern))
        return patterns

    def _strings(self, field: str, value: object, wanted: str) -> tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
            self._check_number(field, value)
            return tuple(value)
        self._wrong(field, value, wanted)
        return ()

    def _check_pattern(self, field: str, pattern: str, in_use: str) -> None:
        wanted = pattern_problem(pattern, in_use)
        if wanted is not None:
            self._wrong(field, pattern, wanted)

    def _check_number(self, field: str, entries: list[object] | dict[str, object]) -> None:
        if len(entries) > MAX_PATTERNS:
            self._add(f"{field} has {len(entries)} entries, at most {MAX_PATTERNS} are served; use patterns")

    def _wrong(self, field: str, value: object, wanted: str) -> None:
        self._add(f"{field}={shorten(value)}: must be {wanted}")

    def _add(self, problem: str) -> None:
        self._is_malformed = True
        self._problems.add(f"adapter_config.json: {problem}")
