"""The Runner: the process in which one candidate is built and called. It is not trusted.

The candidate's code runs in this process and can change anything in it. So the Runner knows no secret, no reference and
no expected value. What it says about itself only decides how a failure is called. The verdict rests on the bytes in the
output memory and on when they were there, both of which the Examiner sees for itself.

A Runner may be started before there is a candidate for it, because creating a GPU context takes long. One Runner judges
one candidate; only the Runner of the references is given one reference after another.
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
from kernel_coder.judge.runner.process_settings import ProcessSettings
from kernel_coder.judge.runner.triton_cache import copy_modules
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, Frame
from kernel_coder.judge.wire.messages import REPORT_BYTES, TASK_DESCRIPTORS, Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import DIRTY, dirty_device_memory

with contextlib.suppress(ImportError):  # imported once in the parent of all Runners
    # torch.utils.cpp_extension needs it and would import it later, in a way that starts CUDA in the parent.
    import setuptools  # noqa: F401

PLAN, SOURCE, REPORT, INPUTS, OUTPUTS = range(TASK_DESCRIPTORS)
"""Order of a task's file descriptors."""

CACHES = ("TRITON_HOME", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Environment variables that name a folder for compiled code. Every Runner has folders of its own."""

IDLE_S = 3600.0
"""Seconds that the Runner waits for a request before it waits anew. No request is no reason to end."""

M_PERTURB = -6
"""Option of glibc's ``mallopt``: fill memory that is allocated with the complement of a byte."""

FILL_BYTE = DIRTY ^ 0xFF
"""Makes M_PERTURB fill host memory with the same byte as GPU memory."""

KEEP_MEMORY = {-3: 1 << 25, -1: 1 << 30, -2: 1 << 25}
"""Options of glibc's ``mallopt`` and their values in bytes.

- M_MMAP_THRESHOLD: from which size on each allocation is mapped anew. 32 MiB is the largest value that glibc takes.
- M_TRIM_THRESHOLD: how much unused memory the heap may keep. 1 GiB is enough for most outputs.
- M_TOP_PAD: by how much the heap grows at least.
"""


def main(fds: list[int]) -> int:
    """Build what the Examiner hands over, and answer its requests until it closes the channel or a build fails.

    Args:
        fds: the channel's file descriptor.

    Returns:
        The exit status, 0.
    """
    tempfile.tempdir = None  # the parent's folder for temporary files, which this process may not write to
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
    """Answer requests until a build fails; ``first`` is a request that has come already."""
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
            if candidate is not None:
                candidate.make_ready(*frame.values[:3])
            _say(channel, Say.PING, Status.OK)
        elif frame.kind in (Say.RELOAD, Say.TRAINING):
            if candidate is not None:
                _say(channel, Say(frame.kind), _changed(candidate, Say(frame.kind), frame.values))
        elif candidate is not None:
            wanted = 0 if frame.values[4] else FILL_BYTE  # timed calls get memory as it comes
            if fill_byte != wanted:  # does not change between timed requests
                fill_memory(wanted)
                fill_byte = wanted
            _say(channel, Say.CALL, *_answer(candidate, frame.values))
        awake_s = candidate.plan["awake_s"] * frame.values[4] if candidate is not None else 0.0


def _build(channel: Channel) -> Candidate | None:
    """Build the candidate whose descriptors come next, and say how that went; None if it failed."""
    fds = channel.receive_descriptors(TASK_DESCRIPTORS)
    report = mmap.mmap(fds[REPORT], REPORT_BYTES)
    plan, source = json.loads(_text(fds[PLAN])), _text(fds[SOURCE])
    for which in (PLAN, SOURCE, REPORT):
        os.close(fds[which])
    try:
        candidate = Candidate(
            plan, fds[INPUTS], fds[OUTPUTS], source, report, lambda: _say(channel, Say.QUEUED, Status.OK)
        )
    except BuildFailed as failed:
        _write_report(report, str(failed))
        _say(channel, Say.BUILT, failed.status)
        return None
    except BaseException as error:
        _write_report(report, traceback.format_exc())
        _say(channel, Say.BUILT, Status.OUT_OF_MEMORY if _is_out_of_memory(error) else Status.NOT_COMPILED)
        return None
    _say(channel, Say.BUILT, Status.OK, (int(candidate.loaded),))
    return candidate


def _changed(candidate: Candidate, say: Say, values: tuple[int, ...]) -> Status:
    """Load the reference's state again, maybe into another instance, or change its mode; the status of the answer."""
    try:
        if say is Say.RELOAD:
            candidate.reload(bool(values[0]), values[1])
        else:
            candidate.set_training(values[0])
    except BuildFailed as failed:
        _write_report(candidate.report, str(failed))
        return failed.status
    except BaseException as error:
        _write_report(candidate.report, traceback.format_exc())
        return Status.OUT_OF_MEMORY if _is_out_of_memory(error) else Status.RAISED
    return Status.OK


def _answer(candidate: Candidate, request: tuple[int, ...]) -> tuple[Status, tuple[int, ...]]:
    """Do what a request of kind CALL asks for; the status and the values of the answer."""
    first, count, variant, mode, is_timed, number = request[:6]
    try:
        if is_timed:
            values = candidate.call(first, count, variant, Mode(mode), number)
        else:
            candidate.streams.hold()
            before = ProcessSettings.now()
            values = candidate.call(first, count, variant, Mode(mode), number)
            if changed := before.differences(ProcessSettings.now()):
                raise WrongStructure(f"a call changes {', '.join(changed)} of the whole process")
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
    """Fill host memory as it is allocated, so that a candidate that takes fresh memory for zeros is wrong.

    Does nothing where the C library is not glibc.

    Args:
        byte: complement of the byte that fills it; 0: leave it as it is, for timed calls.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_PERTURB, byte)


def keep_memory() -> None:
    """Keep freed host memory for the next allocation.

    Otherwise the layout of the heap decides whether an output of a megabyte is given back to the system and paged in
    again in every call. Of two processes that run the same code, one could then be twice as fast.
    """
    with contextlib.suppress(AttributeError):
        for option, value in KEEP_MEMORY.items():
            ctypes.CDLL(None).mallopt(option, value)


# ---- GPU


def make_context() -> None:
    """Create the GPU context. The driver does this for one process at a time.

    An error is ignored here: the candidate's first use of the GPU raises it again, and it is reported then.
    """
    with contextlib.suppress(Exception):
        torch.zeros(2, device="cuda")


def _asked_meanwhile(channel: Channel) -> Frame | None:
    """The request that came while the context was created, if there is one.

    A PING is answered here: it asks whether the context is there, so that the next process can create its own.
    """
    with contextlib.suppress(ChannelTimeout):
        frame = channel.receive(timeout_s=0.0)
        if frame.kind != Say.PING:
            return frame
        _say(channel, Say.PING, Status.OK)
    return None


def start_gpu(has_driver: bool) -> None:
    """Do what every candidate needs on a GPU and what takes a while: fill memory, load the kernels of an audit, start
    Triton's driver.

    Args:
        has_driver: Triton's module for the driver has been built. Otherwise this would build it, needed or not.
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
    """Leave a text for the Examiner: its length in bytes, then the text."""
    data = text.encode(errors="replace")
    if len(data) > REPORT_BYTES - 4:  # the end of a traceback says more than its beginning
        data = data[: REPORT_BYTES // 4] + b"\n...\n" + data[-REPORT_BYTES // 2 :]
    report[: 4 + len(data)] = struct.pack("<I", len(data)) + data


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's error on the CPU
        return True
    return isinstance(error, MemoryError | torch.OutOfMemoryError)
