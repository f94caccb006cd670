"""Messages between the Supervisor and the Examiner: one dataclass for each request and each answer.

Both processes are trusted, so a message is JSON with file descriptors beside it. A field of the type
:data:`Descriptor` names what its descriptor is. Messages of a candidate's Runner are not of this kind: they are frames
of a fixed size (:mod:`kernel_coder.judge.wire.channel`).

The Supervisor sends one request and waits for its answer. Meanwhile the Examiner may send :class:`Waited`, or
:class:`EndCandidate`, which the Supervisor answers with :class:`CandidateEnded`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

from kernel_coder.judge.wire.limits import MESSAGE_BYTES, MESSAGE_DESCRIPTORS

Descriptor = Annotated[int, "descriptor"]
"""A file descriptor. The receiver gets a copy of it with another number."""


class MessageTooLong(ValueError):
    """Raised for a message that has more than :data:`MESSAGE_BYTES` bytes as JSON."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """The base class of all messages."""

    def close_descriptors(self) -> None:
        """Close the descriptors of a message that was received."""
        for name in _DESCRIPTORS[type(self).__name__]:
            if (fd := getattr(self, name)) is not None:
                os.close(fd)


# ---- requests


@dataclass(frozen=True, kw_only=True)
class PrepareTask(Message):
    """Prepare a task for its next candidate: inputs, expected outputs, shared memory. The answer is :class:`Prepared`.

    Attributes:
        task: `reference`, `entry_point`, `precision` and `families` of the task.
        config: the fields of the :class:`kernel_coder.judge.JudgeConfig`.
        device: `cpu` or `cuda:0`, in the Examiner's numbering of its GPUs.
        backend: the language that the candidate is written in.
        is_timed: whether the candidate will be timed, so that the reference needs a Runner too.
        lock: the GPU's lock file, through which Examiners take turns; None without a GPU.
    """

    task: Mapping[str, Any]
    config: Mapping[str, Any]
    device: str
    backend: str
    is_timed: bool
    lock: Descriptor | None


@dataclass(frozen=True, kw_only=True)
class TimeReference(Message):
    """Time the reference while no candidate runs that could disturb it. The answer is :class:`Done`.

    Attributes:
        is_new: the reference was sent to its Runner just now, and must be built first.
        reference_channel: the channel of the reference's Runner.
        reference_process: the pidfd of that Runner.
        lock: the GPU's lock file; None without a GPU.
    """

    is_new: bool
    reference_channel: Descriptor
    reference_process: Descriptor
    lock: Descriptor | None


@dataclass(frozen=True, kw_only=True)
class JudgeCandidate(Message):
    """Examine the candidate that was sent to a Runner. The answer is :class:`Found`.

    Attributes:
        backend: the language that the candidate is written in.
        source: the candidate's source.
        time_limit_s: the candidate's time limit in seconds. Only the time that the Examiner waits for it counts.
        channel: the channel of the candidate's Runner.
        process: the pidfd of that Runner.
        lock: the GPU's lock file; None without a GPU.
        reference_channel: the channel of the reference's Runner; None if the candidate is not timed.
        reference_process: the pidfd of that Runner; likewise.
        next_runner: the read end of a pipe that closes when the next candidate's Runner has started. Nothing is timed
            before. None if no Runner is being started.
    """

    backend: str
    source: str
    time_limit_s: float
    channel: Descriptor
    process: Descriptor
    lock: Descriptor | None
    reference_channel: Descriptor | None
    reference_process: Descriptor | None
    next_runner: Descriptor | None


@dataclass(frozen=True, kw_only=True)
class CompileCandidate(Message):
    """Have a second Runner without Triton's interpreter compile a correct candidate's kernels for the configured
    architecture. The answer is :class:`Compiled`.

    Attributes:
        backend, source, time_limit_s, channel, process: as in :class:`JudgeCandidate`, of the second Runner.
    """

    backend: str
    source: str
    time_limit_s: float
    channel: Descriptor
    process: Descriptor


@dataclass(frozen=True, kw_only=True)
class ForgetTask(Message):
    """Free the last task and its memory, because other Examiners wait for it. The answer is :class:`Done`."""


Request = PrepareTask | TimeReference | JudgeCandidate | CompileCandidate | ForgetTask

# ---- answers


@dataclass(frozen=True, kw_only=True)
class Prepared(Message):
    """The task is prepared.

    Attributes:
        is_new: the candidate's task is not the last candidate's.
        was_ready: the task was still prepared from an earlier candidate.
        waited_s: seconds of the preparation that the Examiner waited for the GPU or its memory.
        has_baseline: a measurement of the reference without a candidate can still be used.
        families: the families of inputs that candidates are checked on.
        skipped: the other families, each with the reason.
        hidden_sizes: other sizes that candidates are checked with; None if the task allows none.
        device: the device's name.
        shared_bytes: size of the shared memory for inputs and outputs.
        is_large: the task takes so much GPU memory that it must be forgotten after its candidate.
        plan: shared memory with the plan, which tells the Runner what to build and where tensors are.
        report: shared memory for texts of the candidate's Runner.
        inputs: shared memory for inputs, in the order of the plan.
        outputs: shared memory for the candidate's outputs.
        reference_report, reference_outputs: the same for the reference's Runner; None if nothing will be timed.
    """

    is_new: bool
    was_ready: bool
    waited_s: float
    has_baseline: bool
    families: Sequence[str]
    skipped: Mapping[str, str]
    hidden_sizes: str | None
    device: str
    shared_bytes: int
    is_large: bool
    plan: Descriptor
    report: Descriptor
    inputs: Descriptor
    outputs: Descriptor
    reference_report: Descriptor | None
    reference_outputs: Descriptor | None


@dataclass(frozen=True, kw_only=True)
class Found(Message):
    """The Examiner's findings about a candidate. Fields have the names and meanings of those of a
    :class:`kernel_coder.judge.Verdict`."""

    outcome: str
    reason: str | None = None
    feedback: str | None = None
    compiled: bool
    errors: Sequence[Mapping[str, Any]]
    seeds: Sequence[int]
    stage_s: Mapping[str, float]
    kernel_share: float | None
    library_share: float | None = None
    specialised: str | None = None
    deterministic: bool | None = None
    aliases_input: bool | None = None
    reuses_output: bool | None = None
    memory_bytes: int | None = None
    reference_memory_bytes: int | None = None
    roofline_share: float | None = None
    clock_note: str | None = None
    kernels: str
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    runtime_ms: float | None = None
    reference_ms: float | None = None
    reference_compile_ms: float | None = None
    runtimes_ms: Sequence[float] = ()
    reference_runtimes_ms: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Compiled(Message):
    """The result of compiling the candidate's kernels for the configured architecture.

    Attributes:
        kernels: facts about each kernel, one line for each; empty if they do not compile.
        outcome, reason, feedback: those of the verdict if they do not compile, else None.
    """

    kernels: str = ""
    outcome: str | None = None
    reason: str | None = None
    feedback: str | None = None


@dataclass(frozen=True, kw_only=True)
class Done(Message):
    """The request was carried out."""


@dataclass(frozen=True, kw_only=True)
class Refusal(Message):
    """No candidate can be judged on this task, or on the inputs that were drawn."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Failure(Message):
    """The Examiner raised an exception.

    Attributes:
        traceback: the end of the exception's traceback.
        is_of_reference: the reference's Runner failed; a candidate may have caused it, since both share the inputs.
    """

    traceback: str
    is_of_reference: bool


Answer = Prepared | Found | Compiled | Done | Refusal | Failure

# ---- between a request and its answer


@dataclass(frozen=True, kw_only=True)
class Waited(Message):
    """The Examiner has waited this long for the GPU, in seconds. The Supervisor extends its own time limit."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class EndCandidate(Message):
    """The Examiner asks the Supervisor to kill the candidate, so that the reference can be timed alone."""


@dataclass(frozen=True, kw_only=True)
class CandidateEnded(Message):
    """The Supervisor's answer: all processes of the candidate have ended."""


_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        *(PrepareTask, TimeReference, JudgeCandidate, CompileCandidate, ForgetTask),
        *(Prepared, Found, Compiled, Done, Refusal, Failure),
        *(Waited, EndCandidate, CandidateEnded),
    )
}

_DESCRIPTORS: dict[str, list[str]] = {  # names of the fields that are descriptors
    name: [
        field_name
        for field_name, hint in get_type_hints(kind, include_extras=True).items()
        if Descriptor in (hint, *get_args(hint))
    ]
    for name, kind in _KINDS.items()
}


class Connection:
    """One end of the socket between the Supervisor and the Examiner. It keeps messages apart (SEQPACKET).

    >>> supervisor, examiner = Connection.pair()
    >>> supervisor.send(ForgetTask())
    >>> examiner.receive()
    ForgetTask()
    >>> examiner.close(); supervisor.receive() is None
    True
    >>> supervisor.close()
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Connection, Connection]:
        """Return two connected ends, with buffers that hold the longest message."""
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES)
        return cls(ends[0]), cls(ends[1])

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``poll``; -1 after it is closed."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message with copies of its descriptors.

        Raises:
            MessageTooLong: the message is longer than :data:`MESSAGE_BYTES`.
            OSError: the other end is closed.
        """
        values = {one.name: getattr(message, one.name) for one in fields(message)}
        kind = type(message).__name__
        described = {name: values.pop(name) for name in _DESCRIPTORS[kind]}
        given = {name: fd for name, fd in described.items() if fd is not None}
        row = {"kind": kind, "values": values, "descriptors": list(given)}
        data = json.dumps(row).encode()
        if len(data) > MESSAGE_BYTES:
            raise MessageTooLong(f"a message of {len(data)} bytes is too long: at most {MESSAGE_BYTES}")
        socket.send_fds(self._socket, [data], list(given.values()))

    def receive(self) -> Message | None:
        """Wait for the next message; None if the other end is closed. The caller closes its descriptors."""
        data, received, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, MESSAGE_DESCRIPTORS)
        if not data:
            return None
        row = json.loads(data)
        described: dict[str, int | None] = dict.fromkeys(_DESCRIPTORS[row["kind"]])
        described.update(zip(row["descriptors"], received, strict=True))
        return _KINDS[row["kind"]](**row["values"], **described)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
