"""How a sandboxed process exchanges data with other processes: frames of one fixed size, and shared memory.

Nothing that an untrusted process sends is decoded into an object: a frame is a kind, a status and seven integers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernel_coder import _C

_FRAME = struct.Struct("<Ii7q")
assert _FRAME.size == _C.sandbox.FRAME_BYTES


class Frame(NamedTuple):
    """A message. :mod:`kernel_coder.judge.wire.messages` says what `kind`, `status` and `values` mean."""

    kind: int
    status: int
    values: tuple[int, ...]


class ChannelTimeout(Exception):
    """Raised if no frame came in time."""


class ChannelClosed(Exception):
    """Raised if the other end was closed, or its process ended."""


class ProtocolBreach(Exception):
    """Raised if a message came that has not the size of a frame."""


class Channel:
    """One end of a pair of sockets that carry frames. `fd` is its descriptor.

    >>> ours, theirs = Channel.pair()
    >>> ours.send(7, status=0, values=(1, -2))
    >>> theirs.receive(timeout_s=1.0)
    Frame(kind=7, status=0, values=(1, -2, 0, 0, 0, 0, 0))
    >>> ours.close(); theirs.close()
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return both ends of a new channel."""
        first, second = _C.sandbox.make_channel()
        return cls(first), cls(second)

    def send(self, kind: int, *, status: int = 0, values: tuple[int, ...] = (), timeout_s: float = 10.0) -> None:
        """Send a frame with at most 7 values; missing ones are 0. Raise ChannelClosed if the other end is closed."""
        if len(values) > 7:
            raise ValueError(f"a frame carries at most 7 values; got {len(values)}")
        frame = _FRAME.pack(kind, status, *values, *(0,) * (7 - len(values)))
        if not _C.sandbox.send_frame(self.fd, frame, timeout_s):
            raise ChannelClosed("the other end of the channel is closed")

    def receive(self, *, timeout_s: float, pidfd: int = -1) -> Frame:
        """Wait for the next frame. If `pidfd` is given, return at once when that process ends.

        Raises:
            ChannelTimeout: no frame came within `timeout_s`.
            ChannelClosed: the other end is closed, or the process ended.
            ProtocolBreach: a message of another size came.
        """
        arrived = _C.sandbox.receive_frame(self.fd, pidfd, timeout_s)
        if isinstance(arrived, bytes):
            kind, status, *values = _FRAME.unpack(arrived)
            return Frame(kind, status, tuple(values))
        if arrived == "timeout":
            raise ChannelTimeout(f"no frame came within {timeout_s:g} s")
        if arrived == "closed":
            raise ChannelClosed("the other end of the channel is closed")
        raise ProtocolBreach(f"a message of another size than {_C.sandbox.FRAME_BYTES} bytes came")

    def receive_at_once(self, *, timeout_s: float, pidfd: int = -1, awake_s: float = 0.02) -> Frame:
        """Wait for the next frame like :meth:`receive`, but do not sleep for the first `awake_s` seconds. Waking up
        takes time, which would be part of a timed request."""
        until = time.perf_counter() + min(awake_s, timeout_s)
        while time.perf_counter() < until:
            with contextlib.suppress(ChannelTimeout):
                return self.receive(timeout_s=0.0, pidfd=pidfd)
        return self.receive(timeout_s=timeout_s, pidfd=pidfd)

    def wait(self, *, timeout_s: float, pidfd: int = -1) -> bool:
        """Wait until a frame can be received, or the other end or the process has ended; False if the time is up."""
        poller = select.poll()
        for fd in (self.fd, pidfd):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        return bool(poller.poll(1000 * max(timeout_s, 0.0)))

    def send_descriptors(self, fds: Sequence[int]) -> None:
        """Send copies of descriptors, which the other end receives with :meth:`receive_descriptors`."""
        with self._socket() as connection:
            try:
                socket.send_fds(connection, [b"fds"], list(fds))
            except (BrokenPipeError, ConnectionResetError):
                raise ChannelClosed("the other end of the channel is closed") from None

    def receive_descriptors(self, count: int) -> list[int]:
        """Wait for `count` descriptors, which the caller must close. There is no time limit, so a frame must announce
        them."""
        with self._socket() as connection:
            message, fds, _, _ = socket.recv_fds(connection, 3, count)
        if not message:
            raise ChannelClosed("the other end of the channel is closed")
        if len(fds) != count:
            for fd in fds:
                os.close(fd)
            raise ProtocolBreach(f"{len(fds)} descriptors came instead of {count}")
        return fds

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, self.fd)
        try:
            yield connection
        finally:
            connection.detach()

    def close(self) -> None:
        """Close this end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedBuffer:
    """Host memory behind a descriptor, whose size no process can change. A context manager.

    The size is sealed because a process that shrinks the file could kill its readers with SIGBUS.

    Attributes:
        size: size in bytes.
        fd: the descriptor, to be sent to other processes; -1 after the buffer is closed.
        view: the memory.

    >>> with SharedBuffer(4096, "doctest") as buffer:
    ...     buffer.view[:2] = b"kc"
    ...     bytes(buffer.view[:3])
    b'kc\\x00'
    """

    def __init__(self, size: int, name: str = "kernel_coder") -> None:
        if size <= 0:
            raise ValueError(f"size must be positive; got {size}")
        self.size = size
        self.fd: int = _C.sandbox.make_buffer(name, size)
        self._map = mmap.mmap(self.fd, size)
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Unmap the memory and close the descriptor. Other processes keep theirs."""
        if self.fd >= 0:
            self.view.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> SharedBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
