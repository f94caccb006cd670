"""Memory of the host or of a GPU that two processes share, used as tensors."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.judge.wire.device_memory import DeviceBuffer
from kernel_coder.judge.wire.messages import ALIGNMENT, TensorSpec, round_up

KEPT_BYTES = 2 << 30
"""Upper limit of the unused GPU memory that torch's allocator keeps, in bytes. Other processes may need it."""

DIRTY_BYTE = 0x7F
"""Byte that memory is filled with before a candidate gets it. Four of them are 3.4e38 as a float32."""

SMALL_BLOCK, SMALL_BLOCKS = 1 << 20, 8
"""Size in bytes and number of the small blocks that are filled. torch keeps blocks of at most a MiB in a pool of their
own, so large blocks do not serve small tensors."""

LARGE_BLOCK = 64 << 20
"""Size in bytes of the large block that is filled before there is a task."""

MAX_DIRTY_BYTES = 1 << 30
"""Upper limit of the block that is filled for a task's outputs, in bytes."""


def has_much_to_free(device: torch.device) -> bool:
    """Return whether torch's allocator keeps more than :data:`KEPT_BYTES` of unused GPU memory in this process."""
    return device.type == "cuda" and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > KEPT_BYTES


def free_memory(device: torch.device) -> bool:
    """Give unused GPU memory back to the driver if there is much of it. Return whether that was so."""
    if not has_much_to_free(device):
        return False
    torch.cuda.empty_cache()
    return True


def dirty_device_memory(device: torch.device) -> None:
    """Fill GPU memory and leave it to torch's allocator. Fresh memory is zero; new tensors then are not.

    This is enough for small tensors and one of 64 MiB. It is done before there is a task, since allocations take long
    when many processes make them at once. :func:`dirty_for_outputs` does the rest.
    """
    if device.type == "cuda":
        _dirty(device, [SMALL_BLOCK] * SMALL_BLOCKS + [LARGE_BLOCK])


def dirty_for_outputs(device: torch.device, output_bytes: int) -> None:
    """Do the same for a tensor as large as all outputs, but at most a GiB, and at most an eighth of the free memory."""
    if device.type == "cuda" and output_bytes > LARGE_BLOCK:
        _dirty(device, [min(output_bytes, MAX_DIRTY_BYTES, torch.cuda.mem_get_info(device)[0] // 8)])


def _dirty(device: torch.device, sizes: list[int]) -> None:
    held = []
    with suppress(torch.OutOfMemoryError):  # other processes use the memory, which is not the candidate's fault
        for size in sizes:
            held.append(torch.empty(size, dtype=torch.uint8, device=device).fill_(DIRTY_BYTE))


def tensor_at(memory: Tensor, spec: TensorSpec, base: int = 0) -> Tensor:
    """Return the tensor at `base + spec.offset` in a tensor of bytes. Nothing is copied.

    >>> tensor_at(torch.zeros(16, dtype=torch.uint8), TensorSpec((2,), "float32", 8))
    tensor([0., 0.])
    """
    start = base + spec.offset
    if start < 0 or start + spec.nbytes > memory.numel():
        raise ValueError(f"a tensor of {spec.nbytes} bytes at {start} does not fit into {memory.numel()}")
    if spec.nbytes == 0:
        return torch.empty(spec.shape, dtype=spec.torch_dtype, device=memory.device)
    return memory[start : start + spec.nbytes].view(spec.torch_dtype).view(spec.shape)


class Arena:
    """Shared memory of one device that holds tensors. A context manager.

    Attributes:
        size: size in bytes, rounded up.
        device: the device of the memory.
        fd: the descriptor, to be sent to another process.
        bytes: the whole memory as a tensor of bytes.

    >>> with Arena(1024, torch.device("cpu")) as arena:
    ...     arena.at(TensorSpec((2, 3), "float32", 512)).fill_(1)
    ...     bytes(arena.bytes[510:513].tolist())
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    b'\\x00\\x00\\x00'
    """

    def __init__(self, size: int, device: torch.device, fd: int | None = None) -> None:
        """Create shared memory; or, with `fd`, map memory that another process has created."""
        self.size = round_up(max(size, ALIGNMENT))
        self.device = device
        self._map: mmap.mmap | None = None
        self._buffer: DeviceBuffer | None = None
        if device.type == "cuda":
            index = device.index or 0
            self._buffer = DeviceBuffer(self.size, index) if fd is None else DeviceBuffer.open(fd, self.size, index)
            self.fd = self._buffer.fd
            self.bytes = self._buffer.tensor(torch.uint8, (self.size,))
        else:
            self.fd = _C.sandbox.make_buffer("arena", self.size) if fd is None else fd
            self._map = mmap.mmap(self.fd, self.size)
            self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def at(self, spec: TensorSpec, base: int = 0) -> Tensor:
        """Return the tensor at `base + spec.offset`."""
        return tensor_at(self.bytes, spec, base)

    def apart(self, spec: TensorSpec, base: int = 0) -> Tensor:
        """Return the same tensor; on the host with its own storage, through which its neighbours cannot be reached."""
        if self._map is None or spec.nbytes == 0:
            return self.at(spec, base)
        start, count = base + spec.offset, spec.nbytes // spec.torch_dtype.itemsize
        return torch.frombuffer(self._map, dtype=spec.torch_dtype, count=count, offset=start).view(spec.shape)

    def close(self) -> None:
        """Release the memory in this process. Other processes keep what they mapped."""
        del self.bytes
        if self._buffer is not None:
            self._buffer.close()
        elif self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._map = None  # unmapped once no tensor is left

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
