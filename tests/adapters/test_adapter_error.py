import pickle

import pytest

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems


def test_one_problem_is_one_line():
    assert str(AdapterError("a1", "/a1", ["r is 0"])) == "adapter 'a1' (/a1): r is 0"


def test_several_problems_are_a_list():
    error = AdapterError("a1", "/a1", ["r is 0", "no tensors"])
    assert str(error) == "adapter 'a1' (/a1): 2 problems\n  - r is 0\n  - no tensors"
    assert isinstance(error, ValueError)


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(AdapterError("a1", "/a1", ["x", "y"], "does_not_fit")))
    assert (error.name, error.path, error.problems, error.kind) == ("a1", "/a1", ("x", "y"), "does_not_fit")
    assert AdapterError("a1", "/a1", ["x"]).kind == "bad_adapter"


def test_problems_are_raised_together():
    problems = AdapterProblems("a1", "/a1")
    problems.check()
    problems.add("x")
    with pytest.raises(AdapterError) as caught:
        problems.fail("y")
    assert caught.value.problems == ("x", "y")
    with pytest.raises(AdapterError):
        problems.check()
