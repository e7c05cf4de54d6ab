"""Pauses by fake clocks: how long, when, and whose."""

from dataclasses import dataclass, field

import pytest

from tensorrt_lora.adapters.load_pacer import LoadPacer


@dataclass
class _Time:
    """One loader thread's day: what it worked and how long it slept, in seconds."""

    now: float = 100.0
    worked: float = 0.0
    busy: bool = True
    pauses: list[float] = field(default_factory=list)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def pacer(self, pause_ratio: float) -> LoadPacer:
        return LoadPacer(
            pause_ratio, lambda: self.busy, clock=lambda: self.now, work_clock=lambda: self.worked, sleep=self.sleep
        )


def test_pauses_are_in_proportion_to_the_work():
    time = _Time()
    pacer = time.pacer(4.0)
    for seconds in (0.006, 0.010):
        time.work(seconds)
        pacer.give_way()
    assert time.pauses == pytest.approx([0.024, 0.040])


def test_short_pieces_are_summed_up():
    time = _Time()
    pacer = time.pacer(4.0)
    for _ in range(1000):
        time.work(0.0003)
        pacer.give_way()
    assert sum(time.pauses) == pytest.approx(4 * time.worked, rel=0.05)
    assert min(time.pauses) >= 0.02


def test_waiting_for_the_disk_is_no_work():
    time = _Time()
    pacer = time.pacer(4.0)
    time.now += 5.0
    pacer.give_way()
    assert time.pauses == []


@pytest.mark.parametrize("change", ["idle", "stopped", "off"])
def test_nothing_pauses_for_nobody(change):
    time = _Time(busy=change != "idle")
    pacer = time.pacer(0.0 if change == "off" else 4.0)
    if change == "stopped":
        pacer.stop()
    time.work(0.5)
    pacer.give_way()
    assert time.pauses == []


def test_what_was_worked_while_the_engine_was_idle_is_not_paused_for_later():
    time = _Time(busy=False)
    pacer = time.pacer(4.0)
    time.work(0.5)
    pacer.give_way()
    time.busy = True
    time.work(0.006)
    pacer.give_way()
    assert time.pauses == pytest.approx([0.024])


def test_pauses_of_several_loaders_follow_each_other():
    """Two that end a piece at the same time: together they work a fifth of the time, as one alone would."""
    time = _Time()
    pauses: list[float] = []
    pacer = LoadPacer(4.0, lambda: True, clock=lambda: time.now, work_clock=lambda: time.worked, sleep=pauses.append)
    time.worked = 0.006
    pacer.give_way()
    time.worked = 0.012
    pacer.give_way()
    assert pauses == pytest.approx([0.024, 0.048])
