"""A gate before a GPU's stream: work that is put in the stream waits until this process opens the gate.

With it, the launches of a Runner can be in line before the clock starts, and before the inputs that they read are
written. The Examiner's own stream waits for a number in the Examiner's memory. Then it copies the inputs to where
Runners see them, and writes another number to memory that it shares with one Runner, whose stream waits for that
number. From then on the clock measures the GPU's time. The time that a process's Python takes to make the launches is
not measured; it differs by up to 45% between two processes that run the same code.

The driver's stream memory operations (cuStreamWaitValue32, cuStreamWriteValue32; CUDA 11.7 or later) wait for numbers
and write them. They use neither a kernel nor the host.
"""

from __future__ import annotations

import ctypes
import functools
import time

import torch

_EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ


class GateError(RuntimeError):
    """Raised if the driver has no stream memory operations, or refused one. The message names the CUDA error."""


def wait_for(address: int, number: int, device: torch.device) -> None:
    """Make the current stream wait until the 32 bits at an address that the GPU can read equal `number`."""
    _call("cuStreamWaitValue32_v2", address, number, _EQUAL, device)


def write_later(address: int, number: int, device: torch.device) -> None:
    """Make the current stream write `number` to an address of the GPU after all work that was put in it before."""
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
    """A gate before this process's current stream. Only this process can open it, because the number that the stream
    waits for is in its own memory."""

    def __init__(self, device: torch.device) -> None:
        """Prepare the gate. Raise GateError if the driver has no stream memory operations."""
        self.device = device
        self._memory = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._word = ctypes.c_uint32.from_address(self._memory.data_ptr())
        self._number = 0
        self._before = torch.cuda.Event()
        self.shut()
        self.open()
        torch.cuda.synchronize(device)

    def shut(self) -> None:
        """Make work that is put in the stream from now on wait for :meth:`open`. Always call that, also after an error:
        a stream behind a shut gate never ends."""
        self._number = self._number % 0xFFFF_FFFF + 1
        self._before.record(torch.cuda.current_stream(self.device))
        wait_for(self._memory.data_ptr(), self._number, self.device)

    def await_reached(self) -> None:
        """Wait until the stream has done all work that was put in it before the gate was shut."""
        self._before.synchronize()

    def open(self) -> float:
        """Open the gate. Return ``time.perf_counter()`` of that moment."""
        opened = time.perf_counter()
        self._word.value = self._number
        return opened


@functools.cache
def gate_of(device: torch.device) -> Gate | None:
    """Return this process's gate of a GPU; None without a GPU, or if the driver has no stream memory operations."""
    if device.type != "cuda":
        return None
    try:
        return Gate(device)
    except GateError:
        return None
