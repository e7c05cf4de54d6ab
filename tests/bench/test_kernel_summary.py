"""Sums and overlaps of a step whose times are known (four layers of 100 us, see `conftest.py`)."""

import pytest

from tensorrt_lora.bench.kernel_summary import lora_overlaps, summarize_step, totals_by_name
from tensorrt_lora.bench.kernel_trace import KernelRun


def test_totals_by_name(kernels: list[KernelRun]) -> None:
    totals = totals_by_name(kernels)
    assert [(total.name.split("_")[0], total.count, total.total) for total in totals[:1]] == [("nvjet", 4, 120.0)]
    by_name = {total.name: total for total in totals}
    assert by_name["_lora_shrink_kernel"].count == 8
    assert by_name["_lora_shrink_kernel"].total == pytest.approx(4 * (10.0 + 4.0))
    assert [total.added for total in totals] == sorted((total.added for total in totals), reverse=True)


def test_what_a_kernel_adds_is_what_it_ends_later() -> None:
    kernels = [
        KernelRun("a", 1, 0.0, 10.0),
        KernelRun("b", 1, 1.0, 12.0),  # launched early
        KernelRun("c", 2, 2.0, 9.0),  # beside a
        KernelRun("a", 1, 15.0, 20.0),
    ]
    added = {total.name: total.added for total in totals_by_name(kernels)}
    assert added == {"a": 15.0, "b": 2.0, "c": 0.0}
    assert sum(added.values()) + summarize_step(kernels).idle == 20.0


def test_each_lora_kernel_and_its_base_kernel(kernels: list[KernelRun]) -> None:
    overlaps = lora_overlaps(kernels)
    assert len(overlaps) == 12
    shrink, expand, alone = overlaps[:3]
    assert shrink.base is not None and shrink.base.name.startswith("nvjet") and shrink.microseconds == 10.0
    # Until 30 beside the projection; the add on the main stream waits for it and never runs beside it.
    assert expand.base is not None and expand.base.name.startswith("nvjet") and expand.microseconds == 10.0
    assert alone.base is None and alone.microseconds == 0.0


def test_kernels_of_the_same_stream_do_not_count_as_beside() -> None:
    base, lora = KernelRun("nvjet", 7, 0.0, 10.0), KernelRun("_lora_shrink_kernel", 7, 9.0, 12.0)
    assert lora_overlaps([base, lora])[0].base is None


def test_step_summary(kernels: list[KernelRun]) -> None:
    step = summarize_step(kernels)
    assert step.span == pytest.approx(390.0)
    assert step.base == pytest.approx(4 * (30 + 2 + 20 + 20))
    assert step.lora == pytest.approx(4 * (10 + 15 + 4))
    assert step.hidden == pytest.approx(4 * (10 + 10))
    assert step.idle == pytest.approx(step.span - step.base - step.lora + step.hidden)


def test_kernels_at_the_same_time_count_once() -> None:
    step = summarize_step([KernelRun("a", 1, 0.0, 10.0), KernelRun("b", 2, 5.0, 12.0), KernelRun("c", 1, 20.0, 21.0)])
    assert (step.span, step.base, step.lora, step.hidden, step.idle) == (21.0, 13.0, 0.0, 0.0, 8.0)
