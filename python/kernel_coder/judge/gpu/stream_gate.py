"""A gate before a GPU's stream: what is asked of the stream waits until somebody lets it through.

With it a Runner's launches can be in line before the clock starts, and before there is anything for them to read: the
Examiner's own stream waits for a number in its own memory, then copies inputs to where Runners see them, and then
writes another number into memory that it shares with one Runner, whose stream waits for that. What is clocked from then
on is the GPU's time; how fast a process's Python makes launches, which differs by up to 45% between two processes that
run the same code, is not.

Numbers are waited for and written by the driver's stream memory operations (cuStreamWaitValue32, cuStreamWriteValue32;
CUDA 11.7 or later), which use neither a kernel nor the host.
"""

from __future__ import annotations

import ctypes
import functools
import time

import torch

_EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ


class GateError(RuntimeError):
    """The driver refused; it says with which error."""


def wait_for(address: int, number: int, device: torch.device) -> None:
    """Have the current stream wait until the 32 bits at an address of the GPU's are this number."""
    _call("cuStreamWaitValue32_v2", address, number, _EQUAL, device)


def write_later(address: int, number: int, device: torch.device) -> None:
    """Have the current stream write the number to an address of the GPU's when it has done all that came before."""
    _call("cuStreamWriteValue32_v2", address, number, 0, device)


def _call(name: str, address: int, number: int, flags: int, device: torch.device) -> None:
    stream = torch.cuda.current_stream(device).cuda_stream
    function = _function(name)
    error = function(stream, address, number, flags)
    if error:
        raise GateError(f"{name}: CUDA error {error}")


@functools.cache
def _function(name: str) -> ctypes._NamedFuncPointer:
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError) as error:
        raise GateError(f"the CUDA driver has no {name}: {error}") from None
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function


class Gate:
    """Before this process's current stream. Nobody else can open it: the number is in memory of this process alone."""

    def __init__(self, device: torch.device) -> None:
        """Raises GateError where the driver has no such operations."""
        self.device = device
        self._memory = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._word = ctypes.c_uint32.from_address(self._memory.data_ptr())
        self._number = 0
        self._before = torch.cuda.Event()
        self.shut()
        self.open()
        torch.cuda.synchronize(device)

    def shut(self) -> None:
        """What the stream is asked for from now on waits for :meth:`open`, which has to come whatever happens."""
        self._number = self._number % 0xFFFF_FFFF + 1
        self._before.record(torch.cuda.current_stream(self.device))
        wait_for(self._memory.data_ptr(), self._number, self.device)

    def await_reached(self) -> None:
        """Until the stream has done all that it was asked for before the gate was shut."""
        self._before.synchronize()

    def open(self) -> float:
        """``time.perf_counter()`` of when it was opened."""
        opened = time.perf_counter()
        self._word.value = self._number
        return opened


@functools.cache
def gate_of(device: torch.device) -> Gate | None:
    """This process's gate of a GPU; None where there is none: no GPU, or a driver without such operations."""
    if device.type != "cuda":
        return None
    try:
        return Gate(device)
    except GateError:
        return None
