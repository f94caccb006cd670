"""Constants of the clock: what each bounds, in which unit, and why it has that value.

A *request* asks a Runner for several *calls* of its module. An *empty* request copies outputs as other requests do, but
computes nothing; its time is what a request costs by itself. A *round* is a request to the reference and one to the
candidate. Names in ``_s`` are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

RESOLUTION = 0.005
"""Relative difference between the times of two processes that run the same code, because their data lie elsewhere in
memory. No speedup is claimed to be known more exactly."""

CONFIDENCE = 0.99
"""Confidence of the intervals of speedups."""

UNSURE = 1 - RESOLUTION
"""Upper limit of the lower bound of a speedup that is not certain: just below 1."""


@dataclass(frozen=True)
class DeviceTiming:
    """Constants that differ between a CPU and a GPU."""

    rounds: int
    """Number of rounds of a verdict, as long as these have at most `max_calls` calls. There are fewer if they take too
    long (:data:`MIN_ROUNDS`), and more if the configuration asks for more calls."""

    min_rounds: int
    """Number of rounds of a verdict whose requests have many calls."""

    max_calls: int
    """Upper limit of a candidate's timed calls, unless `min_rounds` rounds have more. For each call the Examiner makes
    inputs and compares outputs, which takes longer than a small kernel does."""

    least_s: float
    """Time that the calls of a request should take together, as far as there is memory for their inputs and outputs."""

    staged_bytes: int
    """Upper limit of the inputs and outputs of requests that are made before the device is reserved and compared after
    it is released, in bytes. Larger requests are made and compared while the device is reserved."""

    baseline_max_age_s: float
    """Time for which the reference's times without a candidate may serve further candidates of the task."""

    slow: float
    """The reference counts as slowed down if it takes this many times as long in turn with the candidate as without
    one. A CPU is often 1.5 times as slow from one second to the next, when two threads share a core."""

    request_noise_s: float
    """Upper limit of the difference between the times of one request in two processes that run the same code."""

    call_noise_s: float
    """Upper limit of a further difference between them in each call. Each process repeats its own time, but fresh
    processes differ (benchmarks/results: clock_processes_cuda.csv; clock_cuda.csv, kernels of 2.6 and 4.2 us)."""

    launch_noise_s: float
    """The same for each launch, in calls of several launches: calls of six launches and 14 us differed by up to 1.5 us
    (clock_cuda.csv)."""

    call_noise: float
    """Upper limit of a further difference, as a share of a call's time (judge_itself_cpu.csv)."""


TIMING = {
    "cpu": DeviceTiming(
        rounds=32,
        min_rounds=32,
        max_calls=2048,
        least_s=6e-3,
        staged_bytes=1 << 27,
        baseline_max_age_s=10.0,
        slow=1.7,
        request_noise_s=0.0,
        call_noise_s=0.0,
        launch_noise_s=0.0,
        call_noise=0.15,
    ),
    "cuda": DeviceTiming(
        rounds=24,
        min_rounds=12,
        max_calls=264,
        least_s=0.5e-3,
        staged_bytes=1 << 30,
        baseline_max_age_s=60.0,
        slow=1.2,
        request_noise_s=2e-6,
        call_noise_s=0.3e-6,
        launch_noise_s=0.2e-6,
        call_noise=0.005,
    ),
}
"""The constants by kind of device."""

# ---- how many calls and rounds

MIN_ROUNDS = 8
"""Number of rounds that are made even if they take longer than the configuration allows. They are also enough if their
times scatter little (:data:`SETTLED_SHARE`). With 8, the interval from the least to the largest value holds the median
with a confidence of 99.2%; with 7 it would be 98.4%."""

SETTLED_SHARE = 0.5
"""No further rounds are made if the interval of the measured speedups reaches down by at most this share of the noise
that it is widened by. More rounds could make the result little more exact, and they keep the device from others."""

MAX_SCATTER = 1.15
"""If the median of the rounds' speedups is more than this many times the lower end of their interval, half as many
rounds are made again. Without slow requests it is about 1.05."""

REQUEST_S = 6e-3
"""Upper limit of the time of a request's calls together, unless a single call takes longer."""

MAX_REQUEST_S = 0.1
"""The same for a candidate that is much slower than the reference. It limits how long it keeps the device."""

CHUNK_S = 0.3
"""Approximate time for which other processes are kept from the device at a stretch."""

REQUEST_COST_S = 1e-3
"""Approximate cost of a request by itself, on GPU and host. Only used to plan how long rounds take."""

STRANGE_EVERY = MIN_ROUNDS
"""At least one of this many consecutive requests to the candidate has a call on inputs of another family. Otherwise a
candidate that recognises timed calls could be right only on the task's own inputs."""

# ---- the reference alone

BASELINE_PIECES = 5
"""Number of times that the reference is timed before the candidate starts, with pauses between them. A program that
uses the GPU now and then does not disturb all of them, or is noticed."""

BASELINE_S = 5.0
"""After this time no further measurement of the reference is started. The first one is always made."""

MAX_PAUSE_S = 0.03
"""Upper limit of a pause between these measurements, whose length is random."""

SHARED_PROBES = 0.2
"""Share of the probes before and after each measurement that may find the GPU busy although no program uses it for
long: a process that starts or ends uses the GPU for a moment."""

MAX_BASELINE_SPREAD = 1.1
"""Another program used the GPU if the median request of one kind took this many times as long as the fastest.
Undisturbed requests differ by about 1%."""

QUIET_TRIES = 3
"""Number of attempts to time the reference while no other program uses the GPU."""

QUIET_S = 2.0
"""Wait between two attempts. By then another candidate has often ended."""

BUSY_S = 60.0
"""Time during which only one attempt is made, after a GPU did not become quiet in all attempts."""

# ---- one request

CANARIES = 4096
"""Number of bytes of a request's outputs, at secret places, that are read before the clock stops."""

AWAKE_S = 0.02
"""Time for which the Examiner polls for an answer before it sleeps, because waking up takes time."""

FLUSH_BYTES = 256 << 20
"""Number of bytes that are written before a request to flush the cache: more than any L2 cache holds."""

QUEUE_S = 0.3e-3
"""Time for each call for which the gate stays shut while the launches of a request get in line. The launches of a
candidate that waits for the GPU within a call never do, and hundreds of launches take longer. Then the clock includes
the candidate's time on the host."""

GRADIENT_QUEUE_S = 1e-3
"""The same where a call computes gradients too. Autograd launches them on a thread of its own. On an H200, one request
in eleven was not in line within :data:`QUEUE_S` for each call."""

# ---- what is subtracted, and how sure the result is

MIN_SHARE = 0.05
"""Minimum share of a request's time that counts as the time of its calls, however much the request costs by itself."""

DRIFT_S = 10e-6
"""Upper limit of how much longer an empty request in turn with a candidate may count than one without a candidate. It
takes longer because a third process uses the GPU, but a candidate could also slow it down on purpose."""

EARLY_S = 50e-6
"""Upper limit of what a candidate may gain that answers while its last kernel still runs, and whose outputs are right
when they are read."""

HOST_NOISE = 0.5
"""Upper limit of the difference between two processes that make the same launches, as a share of the time that
launching takes. It counts only where the clock includes that time."""
