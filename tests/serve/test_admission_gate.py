"""Shares of the limit, and the server's phases."""

import pytest

from tensorrt_lora.serve.admission_gate import AdmissionGate
from tensorrt_lora.serve.api_error import ApiError


def status(gate: AdmissionGate, num_sequences: int) -> int:
    with pytest.raises(ApiError) as caught:
        gate.enter(num_sequences)
    return caught.value.status


def test_shares() -> None:
    gate = AdmissionGate(4)
    gate.open()
    first, second = gate.enter(3), gate.enter(1)
    assert (status(gate, 1), status(gate, 5), gate.num_running) == (429, 422, 4)
    gate.leave(first)
    gate.leave(first)
    assert gate.num_running == 1 and not gate.is_idle
    gate.leave(second)
    assert gate.is_idle and gate.enter(4).num_sequences == 4


def test_phases() -> None:
    gate = AdmissionGate(1)
    assert status(gate, 1) == 503
    gate.open()
    ticket = gate.enter(1)
    gate.close()
    gate.open()
    assert (gate.phase, status(gate, 1)) == ("draining", 503)
    aborted: list[int] = []
    ticket.abort = lambda: aborted.append(1)
    gate.abort_all()
    assert aborted == [1]
