"""Conversations: an answer, what the judge says to it, the next answer. One answer is the conversation of one turn.

Judging and sampling overlap. Conversations are sampled in batches; while the answers of one batch are judged, the next
batch is sampled. Which conversations share a batch does not depend on how long a verdict took (unless that is asked
for), since a batch decides how log-probs are rounded: a run gives the same bits on a busy machine and on a quiet one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from kernel_coder.prompts import Message, build_feedback, encode_prompt, extend_prompt, short_answer
from kernel_coder.rollout.engine import RolloutEngine, Sampling
from kernel_coder.rollout.types import Rollout, Turn, answer_to
from kernel_coder.tasks import Task
from kernel_coder.tasks.order import in_turn

POLL_S = 0.2
"""Seconds between two looks at whether the work is to be abandoned."""

Ask = Callable[[Task, str], Future[Any]]
"""Begins to judge an answer to a task."""

Context = Literal["all", "last", "best"]
Reasoning = Literal["keep", "summary", "drop"]


class Opening(Protocol):
    """A task as the model is first asked it."""

    @property
    def task(self) -> Task: ...
    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Next:
    """The next prompt: as messages and as ids."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """How a conversation goes on after a verdict.

    Attributes:
        tokenizer: of the model.
        max_turns: answers at most.
        template: of the feedback; see :func:`kernel_coder.prompts.build_feedback`.
        chat_template: as for :func:`kernel_coder.prompts.encode_prompt`.
        context: what is shown of earlier turns. ``all``; the ``last`` or the ``best`` ``context_turns`` of them.
        context_turns: how many those are.
        rank: what makes a verdict better than another, for ``best``.
        earlier_reasoning: ``keep`` leaves earlier answers as they are; ``drop`` leaves their reasoning away, and
            ``summary`` all of it but its last paragraph (as Kevin does, where the model writes it).
        stop_when_correct: a correct answer is the last one.
        room: tokens that a prompt may have; a conversation whose next prompt has more ends. None: any number.

    A prompt that shows all earlier answers as they are is made of the very ids that were sampled; any other is encoded
    from its messages, and is then a training sequence of its own.
    """

    tokenizer: Any
    max_turns: int
    template: str | Path = "feedback"
    chat_template: str | None = None
    context: Context = "all"
    context_turns: int = 1
    rank: Callable[[Any], Any] | None = None
    earlier_reasoning: Reasoning = "keep"
    stop_when_correct: bool = False
    room: int | None = None

    def __call__(self, conversation: Conversation) -> Next | None:
        """The next prompt; None where the conversation ends."""
        turns, verdict = conversation.turns, conversation.verdicts[-1]
        if len(turns) >= self.max_turns or verdict is None or not verdict.is_scored:
            return None
        if self.stop_when_correct and verdict.correct:
            return None
        conversation.replies.append(self._reply(conversation, len(turns) - 1))
        shown = self._shown(conversation)
        found = self._prompt(conversation, shown)
        return None if self.room is not None and len(found.ids) > self.room else found

    def _reply(self, conversation: Conversation, turn: int) -> list[Message]:
        """What is said now about that turn."""
        task, verdict = conversation.opening.task, conversation.verdicts[turn]
        now = len(conversation.turns)
        return build_feedback(task, verdict, self.template, turn=now, max_turns=self.max_turns)

    def _shown(self, conversation: Conversation) -> list[int]:
        """The turns that the next prompt shows, in order: the reply at its end is about the last of them.

        Among the best ones the last turn has its place, unless there is only one.
        """
        everything = list(range(len(conversation.turns)))
        if self.context == "all" or len(everything) <= self.context_turns:
            return everything
        if self.context == "last":
            return everything[-self.context_turns :]
        assert self.rank is not None, "context best needs a rank"
        ranks = [self.rank(verdict) for verdict in conversation.verdicts]
        best = sorted(everything, key=lambda k: (ranks[k], k), reverse=True)  # of equals the later, which has seen more
        if self.context_turns == 1:
            return best[:1]
        return [*sorted([k for k in best if k != everything[-1]][: self.context_turns - 1]), everything[-1]]

    def _prompt(self, conversation: Conversation, shown: Sequence[int]) -> Next:
        turns, before = conversation.turns, conversation.shown[-1]
        answers = [answer_to(messages, turn) for messages, turn in zip(conversation.shown, turns, strict=True)]
        if self.earlier_reasoning == "keep" and len(shown) == len(turns):
            last, reply = turns[-1], conversation.replies[-1]
            ids = extend_prompt(
                self.tokenizer,
                before,
                last.prompt_ids,
                last.completion_ids,
                reply,
                self.chat_template,
                ended=last.finish_reason == "stop",
            )
            return Next((*_asked(before), Message(role="assistant", content=answers[-1]), *reply), tuple(ids))
        messages = list(_asked(tuple(conversation.opening.messages)))
        for k in shown:
            answer = answers[k]
            if self.earlier_reasoning != "keep":
                answer = short_answer(answer, summary=self.earlier_reasoning == "summary")
            # What was said then is about the tries that were left then.
            reply = self._reply(conversation, k) if k == shown[-1] else list(_asked(tuple(conversation.replies[k])))
            messages += [Message(role="assistant", content=answer), *reply]
        return Next(tuple(messages), tuple(encode_prompt(self.tokenizer, messages, self.chat_template)))


def _asked(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages without the beginning of an answer at their end."""
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation as it grows."""

    opening: Opening
    seeds: Callable[[int], int]  # of its n-th answer, from 0
    turns: list[Turn] = field(default_factory=list)
    shown: list[tuple[Message, ...]] = field(default_factory=list)
    verdicts: list[Any] = field(default_factory=list)
    replies: list[list[Message]] = field(default_factory=list)  # to each turn but the last
    next: Next | None = None

    def __post_init__(self) -> None:
        self.next = Next(tuple(self.opening.messages), self.opening.ids)

    def rollout(self) -> Rollout:
        return Rollout(self.opening.task, tuple(self.turns), tuple(self.shown), tuple(self.verdicts))


def converse(
    engine: RolloutEngine,
    conversations: Sequence[Conversation],
    sampling: Sampling,
    *,
    ask: Ask | None = None,
    follow_up: FollowUp | Callable[[Conversation], Next | None] | None = None,
    batch_size: int | None = None,
    tasks_at_once: int = 1,
    fixed_batches: bool = True,
    overlap: bool = True,
    poll: Callable[[], None] | None = None,
    watch: Callable[[str], Any] | None = None,
) -> list[Rollout]:
    """Every conversation to its end, in order.

    Args:
        engine: samples the answers.
        conversations: new ones.
        sampling: how tokens are drawn.
        ask: begins to judge an answer; None: nothing judges, and no turn follows the first.
        follow_up: the next prompt, or None where a conversation ends; None: after its first turn.
        batch_size: conversations that are sampled at once; None: all.
        tasks_at_once: answers that are there together are asked about in such an order that so many tasks take turns;
            see :func:`kernel_coder.tasks.order.in_turn`.
        fixed_batches: conversations stay in the batch that they began in, and a batch goes on when all its verdicts are
            there: the same bits, however long a verdict takes. Without, a batch is made of whichever conversations are
            ready, so that one slow verdict holds up no other conversation.
        overlap: sample while answers are judged: those of earlier batches, and, where the engine tells of an answer's
            end, those of the same one. Not where both would happen on one GPU: sampling beside it would
            disturb what is timed.
        poll: called often; may raise to abandon everything.
        watch: a context manager by name, around the time that is spent on ``rollout`` and on waiting for the ``judge``.
    """
    poll = poll or (lambda: None)
    phase = watch or _unwatched
    size = batch_size or max(len(conversations), 1)
    cut = size if fixed_batches else 1
    ready = deque(list(conversations[start : start + cut]) for start in range(0, len(conversations), cut))
    judged: list[tuple[list[Conversation], list[Future[Any] | None]]] = []
    try:
        while ready or judged:
            if ready and (overlap or not judged):
                batch = ready.popleft()
                while not fixed_batches and ready and len(batch) < size:
                    batch += ready.popleft()
                with phase("rollout"):
                    futures = _answer(engine, batch, sampling, poll, ask, overlap, tasks_at_once)
                parts = [batch] if fixed_batches else [[one] for one in batch]
                for part in parts:
                    begin = batch.index(part[0])
                    asked: list[Future[Any] | None] = list(futures[begin : begin + len(part)])
                    judged.append((part, asked or [None] * len(part)))
            open_ = {future for _, asked in judged for future in asked if future is not None and not future.done()}
            if (not ready or not overlap) and open_ and all(_is_open(asked) for _, asked in judged):
                with phase("judge"):
                    wait(open_, POLL_S, return_when=FIRST_COMPLETED)
            poll()
            waiting = []
            for part, asked in judged:
                if _is_open(asked):
                    waiting.append((part, asked))
                elif going := _go_on(part, asked, follow_up):
                    ready.append(going)
            judged = waiting
    except BaseException:
        for _, asked in judged:
            for future in asked:
                if future is not None:
                    future.cancel()
        raise
    return [one.rollout() for one in conversations]


def _answer(
    engine: RolloutEngine,
    batch: Sequence[Conversation],
    sampling: Sampling,
    poll: Callable[[], None],
    ask: Ask | None,
    overlap: bool,
    tasks_at_once: int,
) -> list[Future[Any]]:
    """The next turn of every conversation of a batch, and what judges it; nothing if there is no judge.

    With ``overlap``, an engine that tells of an answer's end has it judged while others are still written.
    """
    prompts = [one.next for one in batch]
    assert all(prompt is not None for prompt in prompts)
    seeds = [one.seeds(len(one.turns)) for one in batch]
    ids = [prompt.ids for prompt in prompts if prompt is not None]
    early: dict[int, Future[Any]] = {}

    def judged(place: int, turn: Turn) -> None:
        one, prompt = batch[place], prompts[place]
        assert ask is not None
        assert prompt is not None
        early[place] = ask(one.opening.task, answer_to(prompt.messages, turn))

    if ask is not None and overlap and getattr(engine, "tells_of_ends", False):
        turns = engine.generate(ids, sampling, seeds, poll=poll, ended=judged)  # type: ignore[call-arg]
    else:
        turns = engine.generate(ids, sampling, seeds, poll=poll)
    for one, prompt, turn in zip(batch, prompts, turns, strict=True):
        assert prompt is not None
        one.shown.append(prompt.messages)
        one.turns.append(turn)
    if ask is not None:
        late = [place for place in range(len(batch)) if place not in early]
        for place in in_turn(late, lambda place: batch[place].opening.task.id, tasks_at_once):
            judged(place, turns[place])
    return [early[place] for place in range(len(batch))] if ask is not None else []


def _go_on(
    part: Sequence[Conversation],
    asked: Sequence[Future[Any] | None],
    follow_up: Callable[[Conversation], Next | None] | None,
) -> list[Conversation]:
    """Keeps the verdicts, and returns the conversations that have a next prompt."""
    for one, future in zip(part, asked, strict=True):
        one.verdicts.append(None if future is None else future.result())
        one.next = None if follow_up is None or future is None else follow_up(one)
    return [one for one in part if one.next is not None]


def _is_open(asked: Sequence[Future[Any] | None]) -> bool:
    return any(future is not None and not future.done() for future in asked)


class _Unwatched:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def _unwatched(name: str) -> _Unwatched:
    return _Unwatched()
