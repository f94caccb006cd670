"""One local model for several searches at the same time: their questions go into one batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kernel_coder.evaluate.answers import Answer, AskedT, Model, Poll
from kernel_coder.refine.search import POLL_S


@dataclass(eq=False, slots=True)
class _Call:
    """The questions of one search that wait for a batch, and what the batch gave."""

    requests: list[Any]
    answers: list[tuple[Any, Answer]] = field(default_factory=list)
    error: BaseException | None = None
    is_done: bool = False


class SharedModel:
    """Answers the questions of several searches, each of which runs in a thread of its own.

    A local model generates a large batch in little more time than a small one, and must not generate while candidates
    are timed on its GPU. So a batch begins when every search waits for answers. If the judge uses other GPUs, a batch
    begins when half of the searches wait: then the model generates for one half while the other half is judged. The
    answers are those that the model gives to each search alone, up to rounding, since each question has a seed of its
    own.

    Args:
        model: the model. Only one thread at a time calls it.
        poll: called during a batch; may raise to stop all searches that wait for it.
        overlaps: whether the model may generate while candidates are judged.
    """

    def __init__(self, model: Model, poll: Poll, *, overlaps: bool = False) -> None:
        self._model, self._poll, self._overlaps = model, poll, overlaps
        self._changed = threading.Condition()
        self._searches = 0
        self._waiting: list[_Call] = []
        self._is_generating = False

    @contextmanager
    def search(self) -> Iterator[SharedModel]:
        """Counts a search during the block. A batch begins when all counted searches, or half of them, wait."""
        with self._changed:
            self._searches += 1
        try:
            yield self
        finally:
            with self._changed:
                self._searches -= 1
                self._changed.notify_all()

    def answer(self, requests: Sequence[AskedT], poll: Poll) -> Iterator[tuple[AskedT, Answer]]:
        """Yields the answers to these requests once the batch is complete."""
        call = _Call(list(requests))
        with self._changed:
            self._waiting.append(call)
            self._changed.notify_all()
        try:
            while not call.is_done:
                if batch := self._next_batch():
                    self._generate(batch)
                else:
                    poll()
        finally:
            with self._changed:
                if call in self._waiting:
                    self._waiting.remove(call)
        if call.error is not None:
            raise call.error
        yield from call.answers

    def _next_batch(self) -> list[_Call]:
        """Return the calls of the next batch if it can begin now; otherwise wait a moment and return no calls."""
        with self._changed:
            enough = (self._searches + 1) // 2 if self._overlaps else self._searches
            if self._is_generating or not self._waiting or len(self._waiting) < enough:
                self._changed.wait(POLL_S)
                return []
            batch, self._waiting, self._is_generating = self._waiting, [], True
            return batch

    def _generate(self, batch: list[_Call]) -> None:
        asked = {id(request): call for call in batch for request in call.requests}
        error: BaseException | None = None
        try:
            for request, answer in self._model.answer([one for call in batch for one in call.requests], self._poll):
                asked[id(request)].answers.append((request, answer))
        except BaseException as one:
            error = one
        with self._changed:
            self._is_generating = False
            for call in batch:
                call.error, call.is_done = error, True
            self._changed.notify_all()
