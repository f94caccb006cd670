"""The Runner: the process in which one candidate is built and called. It is not trusted.

The candidate's code runs in this process and can change anything in it. So the Runner knows no secret, no reference and
no expected value. What it reports about itself only decides which outcome a failure gets. The verdict depends on the
bytes in the output memory and on when they are there. The Examiner observes both itself.

A Runner may be started before there is a candidate for it, because creating a CUDA context takes long. A Runner judges
one candidate; only the Runner of the references gets several references, one after another.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import struct
import tempfile
import traceback

import torch

from kernel_coder.judge.runner import contents
from kernel_coder.judge.runner.candidate import BuildFailed, Candidate, WrongStructure
from kernel_coder.judge.runner.process_settings import differences, settings_now
from kernel_coder.judge.runner.trained import MissingParameters
from kernel_coder.judge.runner.triton_cache import copy_modules
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, Frame
from kernel_coder.judge.wire.messages import REPORT_BYTES, TASK_DESCRIPTORS, Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import DIRTY_BYTE, dirty_device_memory

with contextlib.suppress(ImportError):  # imported once in the parent of all Runners
    # torch.utils.cpp_extension needs it and would import it later, in a way that starts CUDA in the parent.
    import setuptools  # noqa: F401

PLAN, SOURCE, REPORT, INPUTS, OUTPUTS = range(TASK_DESCRIPTORS)
"""Indices of a task's file descriptors."""

CACHES = ("TRITON_HOME", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Environment variables that name a folder for compiled code. Every Runner has its own folders."""

IDLE_S = 3600.0
"""Time limit, in seconds, of one wait for a request. Then the Runner just waits again."""

M_PERTURB = -6
"""Option of glibc's ``mallopt``: fill new memory with the complement of a byte."""

FILL_BYTE = DIRTY_BYTE ^ 0xFF
"""Value of M_PERTURB with which host memory is filled with the same byte as GPU memory."""

KEEP_MEMORY = {-3: 1 << 25, -1: 1 << 30, -2: 1 << 25}
"""Options of glibc's ``mallopt`` and their values in bytes.

- M_MMAP_THRESHOLD: larger allocations get a mapping of their own. 32 MiB is the largest value that glibc accepts.
- M_TRIM_THRESHOLD: upper limit of the unused memory that the heap keeps. 1 GiB is enough for most outputs.
- M_TOP_PAD: lower limit of the size by which the heap grows.
"""


def main(fds: list[int]) -> int:
    """Build the candidate that is sent, and answer requests until the channel is closed or a build fails.

    Args:
        fds: contains the channel's file descriptor.

    Returns:
        The exit status, 0.
    """
    tempfile.tempdir = None  # it was the parent's folder, which this process may not write to
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the compiler's helpers would use the parent's folders
    for name in CACHES:
        os.environ[name] = os.path.join(os.getcwd(), name.lower())  # not the folders of the parent of all Runners
    has_driver = copy_modules(os.environ["TRITON_CACHE_DIR"])
    keep_memory()
    channel = Channel(fds[0])
    with contextlib.suppress(ChannelClosed):
        first: Frame | None = None
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            make_context()
            first = _asked_meanwhile(channel)
            start_gpu(has_driver)
        _serve(channel, first)
    return 0


def _serve(channel: Channel, first: Frame | None) -> None:
    """Answer requests until a build fails. ``first`` is a request that has been received already."""
    candidate: Candidate | None = None
    awake_s, fill_byte = 0.0, 0
    while True:
        try:
            frame = first or channel.receive_at_once(timeout_s=IDLE_S, awake_s=awake_s)
        except ChannelTimeout:
            continue
        first = None
        if frame.kind == Say.TASK:
            if candidate is not None:
                candidate.close()
                candidate = None
            candidate = _build(channel)
            if candidate is None:
                return
        elif frame.kind == Say.PING:
            if candidate is not None and frame.values[1]:
                candidate.make_ready(*frame.values[:3])
            elif candidate is not None:
                candidate.give_back()
            _say(channel, Say.PING, Status.OK)
        elif frame.kind in (Say.RELOAD, Say.TRAINING):
            if candidate is not None:
                _say(channel, Say(frame.kind), _changed(candidate, Say(frame.kind), frame.values))
        elif candidate is not None:
            wanted = 0 if frame.values[4] else FILL_BYTE  # in timed calls, memory is not filled
            if fill_byte != wanted:
                fill_memory(wanted)
                fill_byte = wanted
            _say(channel, Say.CALL, *_answer(candidate, frame.values))
        awake_s = candidate.plan["awake_s"] * frame.values[4] if candidate is not None else 0.0


def _build(channel: Channel) -> Candidate | None:
    """Build the candidate whose descriptors come next, and report the result; None if the build failed."""
    fds = channel.receive_descriptors(TASK_DESCRIPTORS)
    report = mmap.mmap(fds[REPORT], REPORT_BYTES)
    plan, source = json.loads(_text(fds[PLAN])), _text(fds[SOURCE])
    for which in (PLAN, SOURCE, REPORT):
        os.close(fds[which])
    try:
        candidate = Candidate(
            plan, fds[INPUTS], fds[OUTPUTS], source, report, lambda: _say(channel, Say.QUEUED, Status.OK)
        )
    except (BuildFailed, MissingParameters) as failed:
        _write_report(report, str(failed))
        _say(channel, Say.BUILT, failed.status)
        return None
    except BaseException as error:
        _write_report(report, traceback.format_exc())
        _say(channel, Say.BUILT, Status.OUT_OF_MEMORY if _is_out_of_memory(error) else Status.NOT_COMPILED)
        return None
    _say(channel, Say.BUILT, Status.OK, (int(candidate.loaded.how),))
    return candidate


def _changed(candidate: Candidate, say: Say, values: tuple[int, ...]) -> Status:
    """Load the reference's state again, perhaps into a new instance, or set the mode. Return the answer's status."""
    try:
        if say is Say.RELOAD:
            candidate.reload(bool(values[0]), values[1])
        else:
            candidate.set_training(values[0])
    except (BuildFailed, MissingParameters) as failed:
        _write_report(candidate.report, str(failed))
        return failed.status
    except BaseException as error:
        _write_report(candidate.report, traceback.format_exc())
        return Status.OUT_OF_MEMORY if _is_out_of_memory(error) else Status.RAISED
    return Status.OK


def _answer(candidate: Candidate, request: tuple[int, ...]) -> tuple[Status, tuple[int, ...]]:
    """Carry out a request of kind CALL. Return status and values of the answer."""
    first, count, variant, mode, is_timed, number = request[:6]
    try:
        if is_timed:
            values = candidate.call(first, count, variant, Mode(mode), number)
        else:
            candidate.streams.hold()
            before = settings_now()
            candidate.generators.before_call()
            values = candidate.call(first, count, variant, Mode(mode), number)
            if changed := differences(before, settings_now()):
                raise WrongStructure(f"a call changes {', '.join(changed)} of the whole process")
            if candidate.generators.is_put_back():
                raise WrongStructure("a call puts a random generator of the whole process back to a fixed state")
    except WrongStructure as wrong:
        _write_report(candidate.report, str(wrong))
        return Status.WRONG_STRUCTURE, ()
    except BaseException as error:
        _write_report(candidate.report, traceback.format_exc())
        return Status.OUT_OF_MEMORY if _is_out_of_memory(error) else Status.RAISED, ()
    if candidate.facts:
        _write_report(candidate.report, candidate.facts)
        candidate.facts = ""
    if not is_timed:
        candidate.give_back()
    return Status.OK, values


# ---- host memory


def fill_memory(byte: int) -> None:
    """Fill host memory when it is allocated, so that a candidate is wrong that relies on fresh memory being zero.

    Do nothing if the C library is not glibc.

    Args:
        byte: complement of the byte to fill with; 0: do not fill, for timed calls.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_PERTURB, byte)


def keep_memory() -> None:
    """Keep freed host memory for the next allocation.

    Otherwise the layout of the heap decides whether an output of a megabyte is given back to the system and paged in
    again in every call. Then one of two processes that run the same code could be twice as fast as the other.
    """
    with contextlib.suppress(AttributeError):
        for option, value in KEEP_MEMORY.items():
            ctypes.CDLL(None).mallopt(option, value)


# ---- GPU


def make_context() -> None:
    """Create the CUDA context. The driver does this for one process at a time.

    Errors are ignored here: the candidate's first use of the GPU raises them again, and they are reported then.
    """
    with contextlib.suppress(Exception):
        torch.zeros(2, device="cuda")


def _asked_meanwhile(channel: Channel) -> Frame | None:
    """Return the request that came while the context was created, if there is one.

    If it is a PING, answer it here: it asks whether the context exists, so that the next process can create its own.
    """
    with contextlib.suppress(ChannelTimeout):
        frame = channel.receive(timeout_s=0.0)
        if frame.kind != Say.PING:
            return frame
        _say(channel, Say.PING, Status.OK)
    return None


def start_gpu(has_driver: bool) -> None:
    """Do what every candidate needs on a GPU: fill memory, load the kernels of an audit, start Triton's driver.

    Args:
        has_driver: Triton's module for the driver is built already. Otherwise starting the driver would build it, even
            if it is not needed.
    """
    with contextlib.suppress(Exception):
        numbers = torch.zeros(2, device="cuda")
        contents.warm_up(numbers)
        numbers.clone()
        dirty_device_memory(numbers.device)
        torch.cuda.synchronize()
        if has_driver:
            from triton.runtime.driver import driver

            driver.active.get_current_device()


# ---- messages


def _say(channel: Channel, kind: Say, status: Status, values: tuple[int, ...] = ()) -> None:
    with contextlib.suppress(ChannelClosed):
        channel.send(int(kind), status=int(status), values=values)


def _text(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).rstrip(b"\0").decode()


def _write_report(report: mmap.mmap, text: str) -> None:
    """Write a text for the Examiner: its length in bytes, then the text."""
    data = text.encode(errors="replace")
    if len(data) > REPORT_BYTES - 4:  # keep more of the end of a traceback than of its beginning
        data = data[: REPORT_BYTES // 4] + b"\n...\n" + data[-REPORT_BYTES // 2 :]
    report[: 4 + len(data)] = struct.pack("<I", len(data)) + data


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's error on the CPU
        return True
    return isinstance(error, MemoryError | torch.OutOfMemoryError)
