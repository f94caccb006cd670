"""Constants of the clock: what each bounds, in which unit, and why it has that value.

A *request* asks a Runner for several *calls* of its module. An *empty* request copies outputs as the others do, and
computes nothing; its time is what a request costs by itself. A *round* is a request to the reference and one to the
candidate. In names, ``_s`` is seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

RESOLUTION = 0.005
"""Two processes that run the same code differ by this share, since their data lie elsewhere in memory. No speedup is
claimed to be known more exactly."""

CONFIDENCE = 0.99
"""Of the intervals of speedups."""

UNSURE = 1 - RESOLUTION
"""Upper limit of a lower bound of the speedup where nothing is sure: just below 1."""


@dataclass(frozen=True)
class DeviceTiming:
    """Numbers that differ between a CPU and a GPU."""

    rounds: int
    """Rounds of a verdict, as long as these are at most `max_calls` calls. Fewer where they take too long
    (:data:`MIN_ROUNDS`); more where the configuration asks for more calls."""

    min_rounds: int
    """Rounds of a verdict whose requests have many calls."""

    max_calls: int
    """Upper limit of a candidate's timed calls, beyond `min_rounds`. The Examiner makes inputs and compares outputs for
    each, which takes longer than a small kernel does."""

    least_s: float
    """The calls of a request should take this together, as far as there is memory for their inputs and outputs."""

    staged_bytes: int
    """Upper limit of the inputs and outputs of requests that are made before the device is taken and compared after
    it is released. Larger requests are made and compared in between."""

    baseline_life_s: float
    """Seconds for which the time of the reference alone may be used for further candidates of the same task."""

    slow: float
    """The reference counts as slowed down if it takes so many times as long in turn with the candidate as alone. A CPU
    is often 1.5 times as slow from one second to the next, while two threads share a core."""

    request_noise_s: float
    """Two processes that run the same code differ by up to this in a request."""

    call_noise_s: float
    """They also differ by up to this in each call (benchmarks/results: clock_cuda.csv, kernels of 2.6 and 4.2 us). The
    cause is not known."""

    call_noise: float
    """And by up to this share of a call's time (judge_itself_cpu.csv)."""


TIMING = {
    "cpu": DeviceTiming(
        rounds=32,
        min_rounds=32,
        max_calls=2048,
        least_s=6e-3,
        staged_bytes=1 << 27,
        baseline_life_s=10.0,
        slow=1.7,
        request_noise_s=0.0,
        call_noise_s=0.0,
        call_noise=0.15,
    ),
    "cuda": DeviceTiming(
        rounds=24,
        min_rounds=12,
        max_calls=384,
        least_s=0.5e-3,
        staged_bytes=1 << 30,
        baseline_life_s=60.0,
        slow=1.2,
        request_noise_s=2e-6,
        call_noise_s=0.3e-6,
        call_noise=0.005,
    ),
}
"""By kind of device."""

# ---- how many calls and rounds

MIN_ROUNDS = 10
"""Rounds that are made even if they take longer than the configuration allows. With 10, the interval of a median
reaches from the least to the most."""

REQUEST_S = 6e-3
"""Upper limit of the calls of a request together, unless a single call takes longer."""

MAX_REQUEST_S = 0.1
"""The same for a candidate that is much slower than the reference, so that it does not keep the device for long."""

CHUNK_S = 0.3
"""Other processes are kept from the device for about so long at a time."""

REQUEST_COST_S = 1e-3
"""About what a request costs by itself, with the host's work around it. Only used to plan how long rounds take."""

STRANGE_EVERY = 10
"""Of so many requests to the candidate, at least one has a call on inputs that are not of the task's own kind.
Otherwise a candidate that recognises timed calls could be right on the task's own inputs alone."""

# ---- the reference alone

PIECES = 5
"""The reference is timed so many times before the candidate is there, with pauses between. A program that uses the GPU
now and then is not there each time, or is noticed."""

BASELINE_S = 5.0
"""After so long it is timed no more, but once in any case."""

MAX_PAUSE_S = 0.03
"""Upper limit of a pause, which has a random length."""

SHARED_PROBES = 0.2
"""Share of the probes before and after each piece that may find the GPU busy although no program uses it: a process
that starts or ends has the GPU for a moment."""

STEADY = 1.1
"""Another program used the GPU if the median of the requests of one kind took so many times as long as the fastest.
Undisturbed ones differ by about 1%."""

QUIET_TRIES = 3
"""Attempts to time the reference while no other program uses the GPU."""

QUIET_S = 2.0
"""Wait between two attempts. Candidates do not live long."""

BUSY_S = 60.0
"""If the GPU did not become quiet, the next wait for it is put off for this long."""

# ---- one request

CANARIES = 4096
"""Bytes of a request's outputs, at secret places, that are read before the clock stops."""

AWAKE_S = 0.02
"""The Examiner polls for an answer for so long before it sleeps, since waking up takes time."""

FLUSH_BYTES = 256 << 20
"""Bytes that are written before a request to flush the cache: more than any L2 cache has."""

QUEUE_S = 0.3e-3
"""For so long for each call the gate stays shut until the launches of a request are in line. A candidate that waits for
the GPU within a call never has them in line. One with hundreds of launches is late. Then the clock counts the
candidate's own time, too."""

# ---- what is subtracted, and how sure the result is

MIN_SHARE = 0.05
"""Share of a request's time that its calls are taken to have at least, whatever the request costs by itself."""

DRIFT_S = 10e-6
"""An empty request in turn with a candidate counts at most this much longer than one without. A third process uses the
GPU then, but a candidate could also make empty requests long."""

EARLY_S = 50e-6
"""A candidate that answers while its last kernel still runs may gain up to this, and be right when the outputs are
read."""

HOST_NOISE = 0.5
"""Two processes that make the same launches differ by up to this share of the time that launching takes, where the
clock counts that time."""
