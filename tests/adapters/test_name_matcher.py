"""Python's own `re` says what is right; a pattern that would run for years ends within its budget."""

import re

import pytest

from tensorrt_lora.adapters.name_matcher import MAX_PATTERN_LENGTH, NameMatcher, SlowPatternError, pattern_problem

_NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj", "lm_head", "a\n", ""]
_PATTERNS = [
    r".*\.layers\.(1|3)\..*\.(q|o|up)_proj",
    r"(.*\.)?(layers\.\d+\.self_attn\.[qk]_proj)$",
    r".*_proj|lm_head",
    r"(?i)LM_HEAD",
    r"a$",
    r"",
    r"^(?!.*self_attn).*up_proj",
    r"(?:.*?(?:language|text).*?(?:mlp|attn).*?(?:q_proj|up_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:q_proj|up_proj))",
]
# Refused only at the end, after every way of splitting the name.
_EXPLOSIVE = r"(?:.|\w)*j(?<!j)"


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_matches_are_those_of_re(pattern):
    matcher = NameMatcher()
    for name in _NAMES:
        assert matcher.fullmatch(pattern, name) == (re.fullmatch(pattern, name) is not None), name
        assert (matcher.match(pattern, name) is None) == (re.match(pattern, name) is None), name


@pytest.mark.parametrize(
    "pattern",
    ["q_proj", "self_attn.q_proj", "model.layers.0.self_attn.q_proj", "0.self_attn.q_proj", "self.attn.q.proj", "proj",
     "1.mlp.up_proj", "lm.head", "lm_head", ".lm_head", "a", "up_proj|q_proj", r"layers\.\d+\.mlp\.up_proj", "x" * 99],
)  # fmt: skip
def test_ends_match_as_in_peft(pattern):
    matcher = NameMatcher()
    for name in _NAMES:
        assert matcher.matches_end(pattern, name) == (re.match(rf"(.*\.)?({pattern})$", name) is not None), name


def test_a_pattern_for_each_of_many_modules_is_no_burden():
    names = [f"model.layers.{layer}.mlp.{leaf}_proj" for layer in range(80) for leaf in ("gate", "up", "down", "o")]
    matcher = NameMatcher(seconds=1e-9)
    assert [sum(matcher.matches_end(pattern, name) for pattern in names) for name in names] == [1] * len(names)


def test_groups_can_be_read():
    match = NameMatcher().match(r".*?\.[^.]*\.(?P<idx>\d+)\.", "model.layers.17.mlp")
    assert match is not None and match["idx"] == "17"


def test_a_pattern_that_never_ends_is_given_up():
    matcher = NameMatcher(seconds=0.2)
    with pytest.raises(SlowPatternError, match=r"takes too long to match names like 'model.layers.0.self_attn.q_proj'"):
        matcher.fullmatch(_EXPLOSIVE, _NAMES[0])
    with pytest.raises(SlowPatternError):  # the budget is the adapter's, not the pattern's
        matcher.fullmatch("q_proj", "q_proj")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("q(", "a regular expression (missing ) at position 2)"),
        ("(" * 5000, "a regular expression (maximum recursion depth exceeded"),
        ("q" * (MAX_PATTERN_LENGTH + 1), f"at most {MAX_PATTERN_LENGTH} characters long, it has 10001"),
    ],
)
def test_what_cannot_be_used_is_explained(pattern, problem):
    assert str(pattern_problem(pattern, pattern)).startswith(problem)


def test_what_can_be_used_has_no_problem():
    assert pattern_problem("q_proj|v_proj", r"(.*\.)?(q_proj|v_proj)$") is None
