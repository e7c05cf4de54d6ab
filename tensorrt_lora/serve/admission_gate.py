"""Whether a request may start now, and what runs.

Owns the count of running sequences and the server's phase: starting, serving, draining. Asked by the routes, closed by
`DrainingServer`. Used in the event loop alone, so nothing is locked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tensorrt_lora.serve.api_error import ApiError

Phase = Literal["starting", "serving", "draining"]


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's share of the limit. `abort` ends it when time is up; it is given back by `AdmissionGate.leave`."""

    num_sequences: int
    abort: Callable[[], None]


class AdmissionGate:
    """Lets at most `max_sequences` sequences in at once; all of a request or none of it."""

    def __init__(self, max_sequences: int) -> None:
        self.phase: Phase = "starting"
        self.max_sequences = max_sequences
        self.num_running = 0
        self._tickets: set[Ticket] = set()

    @property
    def is_idle(self) -> bool:
        return not self._tickets

    def open(self) -> None:
        """Start to serve; nothing changes once the server drains."""
        if self.phase == "starting":
            self.phase = "serving"

    def close(self) -> None:
        """Let nobody in any more."""
        self.phase = "draining"

    def check_phase(self) -> None:
        """Raise ApiError (503) unless the server serves."""
        if self.phase == "starting":
            raise ApiError(503, "the server is starting: its adapters are being loaded", code="starting")
        if self.phase == "draining":
            raise ApiError(503, "the server is shutting down: it takes no new requests", code="shutting_down")

    def enter(self, num_sequences: int) -> Ticket:
        """Take a share. Raises ApiError: 503 unless serving, 422 if it could never fit, 429 if it does not fit now."""
        self.check_phase()
        if num_sequences > self.max_sequences:
            raise ApiError(
                422,
                f"the request asks for {num_sequences} sequences (prompts times n), but this server runs at most "
                f"{self.max_sequences}: split it",
                code="too_many_sequences",
            )
        if self.num_running + num_sequences > self.max_sequences:
            raise ApiError(
                429,
                f"{self.num_running} of {self.max_sequences} sequences are running, and the request asks for "
                f"{num_sequences}: try again later",
                code="too_many_requests",
            )
        ticket = Ticket(num_sequences, abort=_nothing)
        self._tickets.add(ticket)
        self.num_running += num_sequences
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a share back; a second call does nothing."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self.num_running -= ticket.num_sequences

    def abort_all(self) -> None:
        """End everything that runs; its clients get what is there, or are told."""
        for ticket in list(self._tickets):
            ticket.abort()


def _nothing() -> None:
    """Until there is something to abort."""
