"""Limits that the Supervisor and the Examiner must agree on: sizes of messages, and how long each waits for the other.

Where both wait for the same work, the Supervisor's limit is the Examiner's plus a margin, so that the Examiner can
still report what went wrong.
"""

MESSAGE_BYTES = 1 << 20
"""Upper limit of one message between the Supervisor and the Examiner, as JSON, in bytes. A SEQPACKET socket delivers a
message as a whole, so the receiver needs a buffer of this size."""

MESSAGE_DESCRIPTORS = 16
"""Upper limit of the file descriptors that are sent with one message. The largest request has six."""

CANDIDATE_BYTES = MESSAGE_BYTES // 2
"""Upper limit of a candidate's source as JSON, in bytes. The source is one field of a message."""

PREPARE_S = 120.0
"""Time limit, in seconds, for the Examiner to prepare a task. Waiting for GPU memory does not count."""

BASELINE_S = 120.0
"""Time limit, in seconds, for timing the reference without a candidate."""

BASELINE_ANSWER_S = BASELINE_S + 30.0
"""Time, in seconds, that the Supervisor waits for this measurement."""

COMPILE_S = 120.0
"""Time limit, in seconds, for the reference under ``torch.compile``: its first call compiles."""

COMPILE_ANSWER_S = COMPILE_S + 30.0
"""Additional time, in seconds, that the Supervisor waits for findings if the reference is compiled too."""

EXAMINER_S = 600.0
"""Upper limit, in seconds, of the Examiner's own work on one candidate: it draws inputs, computes the reference in
float64 and compares outputs. This does not count towards the candidate's time limit. Of KernelBench's references,
level1/68 takes longest: under 30 s on an H200."""

GRACE_S = 20.0
"""Time, in seconds, that the Supervisor waits for the Examiner beyond its time limits. After it the Examiner counts as
hung."""

REFERENCE_GRACE_S = 10.0
"""Time, in seconds, by which the time limit of the reference's Runner exceeds the candidate's. It is above 0, so that
the candidate's own limit ends first if both are equally slow."""

AFTERWARDS_S = 20.0
"""Time limit, in seconds, for timing the reference alone after a timed candidate was killed."""

READY_TASKS = 8
"""Number of tasks that an Examiner keeps prepared. The Supervisor knows which they are when it chooses an Examiner."""
