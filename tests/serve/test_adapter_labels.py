"""How many adapters metrics tell by name."""

from tensorrt_lora.serve.adapter_labels import BASE, OTHER, AdapterLabels
from tensorrt_lora.serve.adapter_name import is_adapter_name


def test_configured_ones_come_first_and_the_rest_share_one() -> None:
    labels = AdapterLabels(["a", "b"], limit=3)
    assert [labels.of(name) for name in ("c", "d", "a", "b", "c", None)] == ["c", OTHER, "a", "b", "c", BASE]


def test_more_configured_than_there_is_room_for() -> None:
    labels = AdapterLabels(["a", "b", "c"], limit=2)
    assert [labels.of(name) for name in "abcd"] == ["a", "b", OTHER, OTHER]
    assert AdapterLabels(["a"], limit=0).of("a") == OTHER


def test_no_adapter_can_be_called_so() -> None:
    assert not is_adapter_name(BASE) and not is_adapter_name(OTHER)
