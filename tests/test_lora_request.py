"""LoRARequest: its names, its equality, and what it refuses."""

import pickle
from enum import Enum, IntEnum
from typing import NamedTuple

import pytest

from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests


def test_short_names_are_the_long_ones() -> None:
    request = LoRARequest("shouting", 3, "/adapters/shouting")
    assert (request.name, request.adapter_id, request.path) == ("shouting", 3, "/adapters/shouting")
    assert request == LoRARequest(lora_name="shouting", lora_int_id=3, lora_path="/adapters/shouting")


def test_id_zero_is_an_id() -> None:
    assert LoRARequest("first", 0, "dir").adapter_id == 0


def test_survives_a_process_boundary_and_keys_a_dict() -> None:
    request = LoRARequest("a", 1, "dir")
    assert pickle.loads(pickle.dumps(request)) == request
    assert {request: "x"}[LoRARequest("a", 1, "dir")] == "x"


@pytest.mark.parametrize(
    ("name", "adapter_id", "path", "message"),
    [
        ("", 1, "dir", "lora_name must be a non-empty string, got ''"),
        (None, 1, "dir", "lora_name must be a non-empty string, got None"),
        ("a", -1, "dir", "lora_int_id of adapter 'a' must be an integer >= 0, got -1"),
        ("a", "1", "dir", "lora_int_id of adapter 'a' must be an integer >= 0, got '1'"),
        ("a", True, "dir", "lora_int_id of adapter 'a' must be an integer >= 0, got True"),
        ("a", 1.0, "dir", "lora_int_id of adapter 'a' must be an integer >= 0, got 1.0"),
        ("a", 1, "", "lora_path of adapter 'a' must be the directory of a PEFT adapter, got ''"),
        ("a", 1, None, "lora_path of adapter 'a' must be the directory of a PEFT adapter, got None"),
    ],
)
def test_refuses(name: str, adapter_id: int, path: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        LoRARequest(name, adapter_id, path)
    assert str(error.value) == message


def test_path_may_not_be_left_out() -> None:
    with pytest.raises(ValueError, match="lora_path of adapter 'a'"):
        LoRARequest("a", 1)


A, B = LoRARequest("a", 1, "adapters/a"), LoRARequest("b", 2, "adapters/b")


def test_a_combination_has_a_name_and_survives_a_process_boundary() -> None:
    combined = WeightedLoRARequests(((A, 0.7), (B, -1)))
    assert (combined.name, combined.path) == ("0.7 * a + -1 * b", "adapters/a, adapters/b")
    assert pickle.loads(pickle.dumps(combined)) == combined
    assert {combined: "x"}[WeightedLoRARequests(((A, 0.7), (B, -1.0)))] == "x"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), r"needs at least one \(LoRARequest, weight\) pair"),
        ((A,), r"holds \(LoRARequest, weight\) pairs, got LoRARequest"),
        (((A, 1, 2),), r"holds \(LoRARequest, weight\) pairs, got \(LoRARequest"),
        ((("a", 1.0),), r"holds \(LoRARequest, weight\) pairs, got \('a', 1.0\)"),
        (((A, True),), "the weight of adapter 'a' must be a finite number, got True"),
        (((A, None),), "the weight of adapter 'a' must be a finite number, got None"),
        (((A, float("inf")),), "the weight of adapter 'a' must be a finite number, got inf"),
        (((A, 10**400),), "the weight of adapter 'a' must be a finite number, got 1000"),
    ],
)
def test_a_combination_of_anything_else_is_refused(parts: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedLoRARequests(parts)


class _Name(str, Enum):
    A = "a"


class _Id(IntEnum):
    ONE = 1


class _Pair(NamedTuple):
    request: LoRARequest
    weight: float


def test_holds_plain_values_only() -> None:
    """A class of the user's script cannot be unpickled in the engine's process."""
    request = LoRARequest(_Name.A, _Id.ONE, _Name.A)
    assert (request.name, request.adapter_id, request.path) == ("a", 1, "a")
    assert [type(value) for value in (request.name, request.adapter_id, request.path)] == [str, int, str]
    [pair] = WeightedLoRARequests((_Pair(request, _Id.ONE),)).parts
    assert (type(pair), type(pair[1]), pair) == (tuple, float, (request, 1.0))
