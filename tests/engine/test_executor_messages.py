"""Failures on their way to the front: common types and their text survive, the rest says what it was."""

import pickle

import pytest

from tensorrt_lora.engine.executor_messages import EngineFailure


class _CustomError(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("rank 65 > 64"), ValueError),
        (_CustomError("rank 65 > 64"), ValueError),
        (FileNotFoundError("rank 65 > 64"), FileNotFoundError),
        (PermissionError("rank 65 > 64"), OSError),
        (MemoryError("rank 65 > 64"), MemoryError),
    ],
)
def test_common_types_keep_type_and_text(error: Exception, kind: type[Exception]) -> None:
    arrived = pickle.loads(pickle.dumps(EngineFailure.from_exception(error))).to_exception()
    assert type(arrived) is kind
    assert str(arrived) == "rank 65 > 64"


def test_other_types_are_runtime_errors_with_the_traceback() -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        arrived = EngineFailure.from_exception(error).to_exception()
    assert type(arrived) is RuntimeError
    assert "ZeroDivisionError: division by zero" in str(arrived)
    assert "_ = 1 / 0" in str(arrived)
