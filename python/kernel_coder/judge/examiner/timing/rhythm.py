"""How many calls a request has, and how many rounds are made while the device is taken."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.task_memory import Variant
from kernel_coder.judge.examiner.timing.answers import Requester
from kernel_coder.judge.examiner.timing_constants import (
    BATCH_CALLS,
    CHUNK_S,
    MAX_REQUEST_S,
    MIN_CALL_S,
    REQUEST_S,
    TIMING,
)
from kernel_coder.judge.examiner.timing_records import Rhythm


def choose_rhythm(
    times_s: Sequence[float], empty_s: float, *, kind: str, timed_calls: int, slots: int, bytes_per_call: int
) -> Rhythm:
    """So many calls that a request takes :data:`REQUEST_S` if they are the faster one's; but no more than are wanted,
    and no more than the slower one makes in :data:`MAX_REQUEST_S`.

    Args:
        times_s: seconds of a call of the reference, of the candidate, or of both.
        empty_s: seconds that a request costs by itself.
        kind: of device.
        timed_calls: calls that are wanted in all.
        slots: calls that shared memory has room for.
        bytes_per_call: of a round's inputs and outputs while they are kept.

    >>> choose_rhythm([50e-6], 0.5e-3, kind="cuda", timed_calls=100, slots=64, bytes_per_call=1 << 20).calls
    9
    """
    device = TIMING[kind]
    times_s = [max(one, MIN_CALL_S) for one in times_s]
    faster, slower = min(times_s), max(times_s)
    wanted = -(-timed_calls // device.rounds)
    batch = min(BATCH_CALLS, round(device.batch_s / faster), device.staged_bytes // bytes_per_call)
    wanted = max(device.min_calls, wanted, batch)
    most = min(slots, round(REQUEST_S / faster), round(MAX_REQUEST_S / slower))
    calls = max(1, min(wanted, most))
    return Rhythm(calls, 2 * (empty_s + calls * slower))


def find_rhythm(
    requester: Requester, link: Link, empty_s: float, known_s: Sequence[float], *, timed_calls: int, variant: Variant
) -> Rhythm:
    """Measure calls of one Runner and choose.

    Args:
        requester: sends the requests.
        link: to the Runner whose calls are measured.
        empty_s: seconds that a request costs by itself.
        known_s: seconds of a call of the other one, if there is another.
        timed_calls: calls that are wanted in all.
        variant: sizes of the inputs.
    """
    kind = requester.checker.task.device.type

    def of_requests(count: int, timed: bool) -> Rhythm:
        answers = requester.answers([link] * count, 1, timed=timed)
        answers = answers if timed else answers[1:]  # the first call also makes what later ones use
        times_s = (min(one.taken_s for one in answers) - empty_s, *known_s)
        slots, size = variant.slots, requester.maker.bytes_of(1)
        return choose_rhythm(times_s, empty_s, kind=kind, timed_calls=timed_calls, slots=slots, bytes_per_call=size)

    rhythm = of_requests(4, timed=False)
    seems_long = rhythm.round_s * TIMING[kind].rounds > CHUNK_S
    if seems_long and requester.turns.lock is not None:  # other processes use the device, and alone it may be faster
        rhythm = of_requests(2, timed=True)
    return rhythm


def rounds_together(requester: Requester, rhythm: Rhythm, count: int) -> int:
    """Rounds, of at most `count`, that are made while other processes are kept from the device."""
    room = TIMING[requester.checker.task.device.type].staged_bytes // requester.maker.bytes_of(rhythm.calls)
    return max(1, min(count, room, round(CHUNK_S / rhythm.round_s)))
