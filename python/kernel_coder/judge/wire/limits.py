"""Limits that the Supervisor and the Examiner must agree on: sizes of messages, and how long each waits for the other.

Where both wait for the same work, the Supervisor's limit is derived from the Examiner's and is longer, so that the
Examiner can still say what went wrong.
"""

MESSAGE_BYTES = 1 << 20
"""Upper limit of one message between the Supervisor and the Examiner, as JSON, in bytes. A SEQPACKET socket delivers a
message whole, so the receiver needs a buffer of this size."""

MESSAGE_DESCRIPTORS = 16
"""Upper limit of the file descriptors that travel with one message. The largest request carries six."""

CANDIDATE_BYTES = MESSAGE_BYTES // 2
"""Upper limit of a candidate's source as JSON, in bytes. The source is part of a message, beside the other fields."""

PREPARE_S = 120.0
"""Time that the Examiner may take to prepare a task, in seconds. Waiting for GPU memory does not count."""

BASELINE_S = 120.0
"""Time that the reference's Runner may take to be timed without a candidate, in seconds."""

BASELINE_ANSWER_S = BASELINE_S + 30.0
"""Time that the Supervisor waits for this measurement, in seconds."""

COMPILE_S = 120.0
"""Time that the reference may take under ``torch.compile``, in seconds: its first call compiles."""

COMPILE_ANSWER_S = COMPILE_S + 30.0
"""Time that the Supervisor waits longer for findings where the reference is compiled too, in seconds."""

GRACE_S = 20.0
"""Time beyond a candidate's time limit that the Supervisor waits for the Examiner, in seconds. An Examiner that needs
longer counts as hung."""

REFERENCE_GRACE_S = 10.0
"""Time beyond a candidate's time limit that the reference's Runner may still answer, in seconds. It is above 0, so that
the candidate's own limit ends first, and below :data:`GRACE_S`, so that the Examiner notices before the Supervisor."""

AFTERWARDS_S = 20.0
"""Time that the Examiner may use after a timed candidate was killed, in seconds: it times the reference alone."""

READY_TASKS = 8
"""Number of tasks that an Examiner keeps prepared. The Supervisor remembers which, to choose an Examiner for a task."""
