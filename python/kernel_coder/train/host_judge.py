"""One judge for all ranks of a host: local rank 0 opens it, and the others send requests to it over a Unix socket.

The judge alone decides what runs on the host's GPUs and when it is timed. Several judges on one host would disturb each
other's measurements.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from kernel_coder.judge import Verdict
from kernel_coder.run import distributed
from kernel_coder.tasks import Task

KEY_BYTES = 32
"""Length of the random key with which the ranks of a host authenticate each other, in bytes."""


class Turnstile:
    """Allows either sampling or judging on a host, never both. Each may be done by several threads at once.

    If candidates were timed while the same GPUs sample, the sampling would change the measured times.

    >>> turnstile = Turnstile()
    >>> with turnstile("sampling"), turnstile("sampling"):
    ...     turnstile.counts
    {'sampling': 2, 'judging': 0}
    """

    def __init__(self) -> None:
        self.counts = {"sampling": 0, "judging": 0}
        self._changed = threading.Condition()

    @contextmanager
    def __call__(self, kind: str) -> Iterator[None]:
        """Waits until the other kind has ended, and keeps it away inside the block."""
        other = "judging" if kind == "sampling" else "sampling"
        with self._changed:
            self._changed.wait_for(lambda: not self.counts[other])
            self.counts[kind] += 1
        try:
            yield
        finally:
            with self._changed:
                self.counts[kind] -= 1
                self._changed.notify_all()


class HostJudge:
    """The judge of a host, in the process that opened it. It also serves the host's other ranks.

    Args:
        judge: the open judge.
        alternate: never judge while a rank of this host samples.
    """

    def __init__(self, judge: Any, *, alternate: bool) -> None:
        self.judge = judge
        self.turnstile = Turnstile() if alternate else None
        self.folder = tempfile.TemporaryDirectory(prefix="kernel_coder-judge-")
        self.key = os.urandom(KEY_BYTES)
        self.path = str(Path(self.folder.name) / "socket")
        self._listener = Listener(self.path, "AF_UNIX", authkey=self.key)
        threading.Thread(target=self._accept, name="judge-of-host", daemon=True).start()

    @property
    def address(self) -> tuple[str, bytes]:
        """The path of the socket, and the key."""
        return self.path, self.key

    def evaluate(self, task: Task, candidate: str, backend: str | None = None) -> Verdict:
        """See :meth:`kernel_coder.judge.Judge.evaluate`."""
        with nothing() if self.turnstile is None else self.turnstile("judging"):
            verdict: Verdict = self.judge.evaluate(task, candidate, backend)
            return verdict

    def sampling(self) -> AbstractContextManager[None]:
        """Inside, this rank samples."""
        return nothing() if self.turnstile is None else self.turnstile("sampling")

    def close(self, *, wait: bool = True) -> None:
        """Closes the judge and the socket."""
        with contextlib.suppress(OSError):
            self._listener.close()
        self.judge.close(wait=wait)
        self.folder.cleanup()

    def __enter__(self) -> HostJudge:
        return self

    def __exit__(self, *exception: Any) -> None:
        with contextlib.suppress(OSError):
            self._listener.close()
        self.judge.__exit__(*exception)
        self.folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):  # the listener was closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="judge-of-rank", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Answers the requests of one thread of a rank until the connection ends. A rank that died no longer
        samples."""
        with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as stack:
            while True:
                kind, arguments = connection.recv()
                try:
                    if kind == "evaluate":
                        connection.send((True, self.evaluate(*arguments)))
                        continue
                    if kind == "sampling":
                        stack.enter_context(self.sampling())
                    else:
                        stack.close()
                    connection.send((True, None))
                except Exception as error:
                    connection.send((False, error))


class JudgeOfHost:
    """The host's judge, as seen from a rank that did not open it.

    Args:
        address: see :attr:`HostJudge.address`.
    """

    def __init__(self, address: tuple[str, bytes]) -> None:
        self._path, self._key = address
        self._threads = threading.local()
        self._open: list[Connection] = []

    def evaluate(self, task: Task, candidate: str, backend: str | None = None) -> Verdict:
        """See :meth:`kernel_coder.judge.Judge.evaluate`."""
        verdict: Verdict = self._ask("evaluate", task, candidate, backend)
        return verdict

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Inside, this rank samples."""
        self._ask("sampling")
        try:
            yield
        finally:
            self._ask("sampled")

    def close(self, *, wait: bool = True) -> None:
        """Closes the connections. The judge stays open for the other ranks."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.close()
        self._open.clear()

    def __enter__(self) -> JudgeOfHost:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _ask(self, kind: str, *arguments: Any) -> Any:
        """Sends a request and waits for its answer. Every thread has a connection of its own."""
        try:
            connection = getattr(self._threads, "connection", None)
            if connection is None:
                connection = self._threads.connection = Client(self._path, "AF_UNIX", authkey=self._key)
                self._open.append(connection)
            connection.send((kind, arguments))
            done, value = connection.recv()
        except (OSError, EOFError) as error:
            raise RuntimeError(f"the judge of this host, in local rank 0, has ended: {error!r}") from None
        if not done:
            raise value
        return value


@contextmanager
def nothing() -> Iterator[None]:
    """Does nothing, as a context manager."""
    yield


def judge_of_host(open_judge: Callable[[], Any], *, alternate: bool) -> Any:
    """Return the judge that the ranks of this host share. Local rank 0 opens it. All ranks must call this together.

    Args:
        open_judge: opens the judge.
        alternate: never judge while a rank of this host samples.
    """
    world = distributed.world()
    ours = HostJudge(open_judge(), alternate=alternate) if world.local_rank == 0 else None
    addresses = distributed.gathered(None if ours is None else ours.address)
    if ours is not None:
        return ours
    address = addresses[world.host * world.local_size]
    assert address is not None
    return JudgeOfHost(address)
