"""Constants of the clock: what each bounds, in which unit, and why it has that value.

A *request* asks a Runner for several *calls* of its module. A *round* is a request to the reference and one to the
candidate. A *ping* is a request that does next to nothing; its time is what a request costs by itself. In names, ``_s``
is seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

RESOLUTION = 0.005
"""Two processes that run the same code differ by this share, since their data lie elsewhere in memory. No speedup is
claimed to be known more exactly."""


@dataclass(frozen=True)
class DeviceTiming:
    """Numbers that differ between a CPU and a GPU."""

    rounds: int
    """Rounds of a verdict. Fewer where they take too long (:data:`MIN_ROUNDS`)."""

    batch_s: float
    """The calls of a request should take this together, up to :data:`BATCH_CALLS` calls. On a GPU a request costs
    0.4 ms by itself, and that differs by 0.01 ms from one request to the next."""

    min_calls: int
    """Calls of a request at least, even if few are wanted. On a CPU a request waits for a core, and few short calls
    would drown in that wait."""

    staged_bytes: int
    """Inputs and outputs of requests that may be held outside shared memory, so that they can be made before and
    compared after the time that the device is taken for. Larger requests are made and compared in between."""

    baseline_life_s: float
    """Seconds that the time of the reference alone may be used for further candidates of the same task."""

    slow: float
    """The reference counts as slowed down if it takes so many times as long in turn with the candidate as alone. A CPU
    is often 1.5 times as slow from one second to the next, while two threads share a core."""

    request_noise_s: float
    """Two processes that run the same code differ by up to this in a request (benchmarks/results:
    judge_clock_cuda.csv, judge_itself_cpu.csv)."""

    call_noise: float
    """They also differ by up to this share of the calls' time."""


TIMING = {
    "cpu": DeviceTiming(
        rounds=32,
        batch_s=0.0,
        min_calls=64,
        staged_bytes=1 << 27,
        baseline_life_s=10.0,
        slow=1.7,
        request_noise_s=0.0,
        call_noise=0.15,
    ),
    "cuda": DeviceTiming(
        rounds=12,
        batch_s=0.3e-3,
        min_calls=4,
        staged_bytes=1 << 30,
        baseline_life_s=60.0,
        slow=1.2,
        request_noise_s=20e-6,
        call_noise=0.01,
    ),
}
"""By kind of device."""

# ---- how many calls and rounds

MIN_ROUNDS = 10
"""Rounds that are made even if they take longer than the configuration allows. With fewer, a median has no interval of
99% confidence: with 10 it reaches from the least to the most."""

REQUEST_S = 6e-3
"""Calls of a small kernel are put together until a request takes this long."""

MAX_REQUEST_S = 0.1
"""Longest request of the slower of both, unless a single call takes longer. So a slow candidate does not keep the
device for long."""

BATCH_CALLS = 20
"""Calls of a request at most that are put together for :attr:`DeviceTiming.batch_s`."""

MIN_CALL_S = 5e-6
"""A call is taken to last at least this long until it has been timed in a request of several. Less cannot be told from
the noise of one request."""

CHUNK_S = 0.3
"""Other processes are kept from the device for about so long at a time."""

STRANGE_EVERY = 10
"""Of so many requests to the candidate, at least one has a call on inputs that are not of the task's own kind.
Otherwise a candidate that recognises timed calls could be right on the task's own inputs alone."""

# ---- the reference alone

BASELINE_ROUNDS = 5
"""Requests to the reference before the candidate is there."""

BASELINE_S = 5.0
"""After so long no more of these requests are made, but one is in any case."""

PINGS = 9
"""Pings before the candidate is there."""

PINGS_IN_TURN = 5
"""Pings of each Runner while the candidate is there, and of the reference afterwards."""

PIECES = 5
"""A GPU's reference is timed in so many pieces, since another program that uses the GPU now and then is not there all
the time, or is noticed."""

MAX_PAUSE_S = 0.03
"""Longest random pause between two pieces."""

SHARED_PROBES = 0.2
"""Share of the probes around these pieces that may find the GPU busy although no program uses it: a process that starts
or ends has the GPU for a moment."""

QUIET_TRIES = 3
"""Attempts to time the reference while no other program uses the GPU."""

QUIET_S = 2.0
"""Longest wait for another program to finish. Candidates do not live long."""

QUIET_POLL_S = 0.25
"""Time between two looks at the GPU during that wait."""

BUSY_S = 60.0
"""If the GPU did not become quiet, the next wait for it is put off for this long."""

TRIES_IN_TURN = 2
"""Attempts to time both in turn, if the reference was slowed down."""

SPARE_S = 5.0
"""A second attempt is made only if the candidate then has this much of its time limit left."""

# ---- one request

CANARIES = 4096
"""Bytes of a request's outputs, at secret places, that are read before the clock stops."""

AWAKE_S = 0.02
"""The Examiner polls for an answer for so long before it sleeps, since waking up takes time that the clock would
count."""

FLUSH_BYTES = 256 << 20
"""Bytes that are written before a request to flush the cache: more than any L2 cache has."""

SHOWN_BYTES = 1 << 20
"""Bytes of inputs whose copy to shared memory is part of a ping. For larger inputs the rest is measured apart."""

MEASURED_BYTES = 1 << 28
"""Bytes of inputs at most with which that is measured."""

COPIES = 5
"""Times that a copy is measured."""

QUEUE_S = 0.3e-3
"""For so long for each call the clock waits until the launches of a request are in line. A candidate that waits for the
GPU within a call never has them in line. One with hundreds of launches is late. Then the clock counts the candidate's
own time, too."""

# ---- what is subtracted, and how sure the result is

MIN_SHARE = 0.05
"""Share of a request's time that its calls are taken to have at least, whatever the request costs by itself."""

EARLY_S = 50e-6
"""A candidate that answers while its last kernel still runs may gain up to this, and be right when the outputs are
read."""

HOST_NOISE = 0.5
"""Two processes that make the same launches differ by up to this share of the time that launching takes, where the
clock counts that time."""

HOST_S = 2e-3
"""Without a gate it is not known how long launching takes; it is taken to be this for each call."""

UNSURE = 1 - RESOLUTION
"""Upper limit of a lower bound of the speedup where nothing is sure: just below 1."""
