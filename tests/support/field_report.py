"""The decorator that ties a test to public reports by users of other engines and trainers.

An id is the project's short name and the number of the thread: trtllm is TensorRT-LLM, trtbe its Triton backend, tgi
text-generation-inference; the other names are the projects' own.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])


def report(*ids: str) -> Callable[[Test], Test]:
    """Marks the test of one report, or of several with the same right answer; the ids appear in the test's name."""

    def decorate(test: Test) -> Test:
        named = pytest.mark.parametrize("field_report", [" ".join(ids)], indirect=True)
        return named(pytest.mark.usefixtures("field_report")(test))

    return decorate
