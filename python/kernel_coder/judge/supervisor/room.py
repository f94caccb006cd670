"""Who is at work in a judge: many at a time, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """Any number share it; who needs it alone waits until they have left, and nobody enters meanwhile.

    >>> room = Room()
    >>> with room.shared(), room.shared():
    ...     room.inside
    2
    >>> with room.alone():
    ...     room.inside
    1
    """

    def __init__(self) -> None:
        self.inside = 0
        self._loners = 0  # one inside, the others at the door
        self._changed = threading.Condition()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """With others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._loners)
            self.inside += 1
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Without others."""
        with self._changed:
            self._loners += 1
            self._changed.wait_for(lambda: not self.inside)
            self.inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._loners -= 1
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self.inside -= 1
            self._changed.notify_all()
