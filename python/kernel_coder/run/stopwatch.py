"""Time spent in the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of each phase, measured from the stopwatch's creation on.

    Args:
        on_phase: is told the name of each phase that begins.

    >>> watch = Stopwatch()
    >>> with watch.phase("update"):
    ...     pass
    >>> sorted(watch.metrics(tokens=0))[-2:]
    ['time/tokens_per_second', 'time/update_s']
    """

    def __init__(self, on_phase: Callable[[str], None] = lambda name: None) -> None:
        self.seconds: dict[str, float] = {}
        self.on_phase = on_phase
        self._start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the body to the phase."""
        start = time.perf_counter()
        self.on_phase(name)
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def metrics(self, tokens: int) -> dict[str, float]:
        """``time/<phase>_s`` in seconds, ``time/step_s``, and tokens per second of the step and of its rollout."""
        total = time.perf_counter() - self._start
        rollout = self.seconds.get("rollout", 0.0)
        return {
            **{f"time/{name}_s": seconds for name, seconds in self.seconds.items()},
            "time/step_s": total,
            "time/tokens_per_second": tokens / total if total > 0 else 0.0,
            "time/rollout_tokens_per_second": tokens / rollout if rollout > 0 else 0.0,
        }
