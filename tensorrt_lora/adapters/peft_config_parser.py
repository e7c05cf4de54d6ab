"""From the JSON of an adapter_config.json to a checked `PeftConfig`.

Owns types, bounds and defaults of the fields that are served. Called by `read_peft_checkpoint`. Knows no
tensors and no model.
"""

import re

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_config import PeftConfig
from tensorrt_lora.adapters.peft_features import check_features, shorten


class PeftConfigParser:
    """Parses one configuration; whatever is wrong or not served goes to `problems`."""

    def __init__(self, raw: dict[str, object], problems: AdapterProblems) -> None:
        self._raw = raw
        self._problems = problems

    def parse(self) -> PeftConfig:
        """The checked configuration. Raises AdapterError listing all that is malformed or not served."""
        check_features(self._raw, self._problems)
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
            base_model=base_model if isinstance(base_model, str) and base_model else None,
        )
        self._check_targets(config)
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
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self._wrong(field, value, "an integer >= 1")
        return 1

    def _alpha(self, field: str, value: object) -> float:
        # Python's JSON also reads NaN, Infinity and integers beyond float; the bound excludes them all.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            return value
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
        listed = [value] if isinstance(value, str) else value
        patterns = self._strings("layers_pattern", listed, "a name or a list of names")
        for pattern in patterns:
            self._check_regex("layers_pattern", pattern, rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.")
        return patterns

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

    def _wrong(self, field: str, value: object, wanted: str) -> None:
        self._add(f"{field}={shorten(value)}: must be {wanted}")

    def _add(self, problem: str) -> None:
        self._problems.add(f"adapter_config.json: {problem}")
