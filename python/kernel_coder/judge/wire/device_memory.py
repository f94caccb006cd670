"""GPU memory that two processes share by a file descriptor, even if they run as different users.

``torch.multiprocessing`` uses CUDA's interprocess handles, which only processes of the same user can open. A descriptor
of memory from the driver's virtual memory functions can be opened by every process that it was sent to. Importing this
module does not touch CUDA; making a buffer does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.judge.gpu.nvml import device_index

DeviceMemoryError = _C.sandbox.DeviceMemoryError
"""A RuntimeError: the driver or the GPU is missing, or the driver refused. The message says which."""

DeviceOutOfMemory = _C.sandbox.DeviceOutOfMemory
"""A DeviceMemoryError: the GPU has too little free memory for the buffer. The message has both sizes."""


class DeviceBuffer:
    """Memory of one GPU. A context manager.

    The process that makes it hands `fd` to another process, as an inherited descriptor or through a socket. That
    process calls :meth:`open` with the same size. Both then see the same bytes, each at an address of its own. Their
    accesses are not ordered: a writer has to synchronise its device before it tells the reader.

        with DeviceBuffer(1 << 20, "cuda:0") as buffer:
            send(buffer.fd)
            buffer.tensor(torch.float32, (256, 1024)).normal_()

    The contents of a new buffer are undefined.

    Args:
        size: size in bytes, positive. The driver rounds it up, mostly to a multiple of 2 MiB.
        device: the index of a GPU in this process, ``"cuda:0"``, or a ``torch.device``.

    Raises:
        DeviceOutOfMemory: too little memory is free.
        DeviceMemoryError: no driver, no such GPU, or a GPU that cannot share memory.
        ValueError: a size that is not positive, or a device that is no GPU.

    Attributes:
        size: as given.
        device: the GPU's index.
        fd: the descriptor. :meth:`close` closes it and sets this to -1.
        pointer: the address in this process.
    """

    size: int
    device: int
    fd: int
    _memory: _C.sandbox.DeviceMemory | None

    def __init__(self, size: int, device: int | str | torch.device = 0) -> None:
        self._begin(size, device)
        self._memory = _C.sandbox.DeviceMemory.create(self.size, self.device)
        self.fd = self._open_memory().export_fd()

    @classmethod
    def open(cls, fd: int, size: int, device: int | str | torch.device = 0) -> DeviceBuffer:
        """Map the buffer that another process has made with this size on the same GPU.

        The new buffer closes the descriptor. If there is an error, the caller must close it.

        Raises:
            DeviceMemoryError: as above; or the descriptor is not one of GPU memory, or the memory is smaller.
        """
        buffer = cls.__new__(cls)
        buffer._begin(size, device)
        if fd < 0:
            raise ValueError(f"fd must be an open descriptor; got {fd}")
        buffer._memory = _C.sandbox.DeviceMemory.open(fd, buffer.size, buffer.device)
        buffer.fd = fd
        return buffer

    def _begin(self, size: int, device: int | str | torch.device) -> None:
        if size <= 0:
            raise ValueError(f"size must be positive; got {size}")
        self.fd = -1
        self.size = size
        self.device = device_index(device)
        self._memory = None
        self._bytes: Tensor | None = None

    @property
    def pointer(self) -> int:
        """The address in this process. Raises ValueError after the buffer is closed."""
        return int(self._open_memory().pointer)

    def _open_memory(self) -> _C.sandbox.DeviceMemory:
        if self._memory is None:
            raise ValueError("the buffer is closed")
        return self._memory

    def tensor(
        self, dtype: torch.dtype, shape: Sequence[int], offset: int = 0, strides: Sequence[int] | None = None
    ) -> Tensor:
        """Return a tensor over the buffer's bytes, without a copy. It stays valid when the buffer is closed.

        Args:
            dtype: any dtype.
            shape: any shape that fits, with sizes of 0 allowed.
            offset: offset of the first element in bytes; a multiple of the element's size.
            strides: strides in elements, not negative; None: those of a contiguous tensor.

        Raises:
            ValueError: the tensor does not fit into the buffer, or the offset is not aligned.
        """
        strides = contiguous_strides(shape) if strides is None else tuple(strides)
        end = offset + extent(shape, strides) * dtype.itemsize
        if offset < 0 or end > self.size:
            raise ValueError(f"a tensor from byte {offset} to {end} does not fit into a buffer of {self.size} bytes")
        if offset % dtype.itemsize:
            raise ValueError(f"offset must be a multiple of {dtype.itemsize} for {dtype}; got {offset}")
        whole = self._whole()
        usable = whole.numel() // dtype.itemsize * dtype.itemsize
        return whole[:usable].view(dtype).as_strided(tuple(shape), strides, offset // dtype.itemsize)

    def _whole(self) -> Tensor:
        memory = self._open_memory()
        if self._bytes is None:
            from torch.utils.dlpack import from_dlpack

            torch.cuda.init()
            self._bytes = from_dlpack(memory.dlpack())
        return self._bytes

    def close(self) -> None:
        """Close the descriptor. The memory is unmapped once no tensor over it is left in this process."""
        self._memory = self._bytes = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._memory is None else f"fd {self.fd}"
        return f"DeviceBuffer({self.size} bytes on GPU {self.device}, {state})"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements.

    >>> contiguous_strides((2, 3, 4)), contiguous_strides(())
    ((12, 4, 1), ())
    """
    return tuple(math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last in memory, both included.

    >>> extent((2, 3), (3, 1)), extent((2, 3), (0, 5)), extent((2, 0), (1, 1)), extent((), ())
    (6, 11, 0, 1)
    """
    if len(shape) != len(strides):
        raise ValueError(f"strides must be one for each dimension; got {len(strides)} for shape {list(shape)}")
    if any(size < 0 for size in shape) or any(stride < 0 for stride in strides):
        raise ValueError(f"no size and no stride may be negative; got {list(shape)} and {list(strides)}")
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
