"""Conversations of answers and the judge's feedback. A single answer is a conversation of one turn.

Sampling and judging overlap: while the answers of one batch are judged, the next batch is sampled. Log-probs are
rounded differently in different batches. So by default the batches do not depend on the duration of verdicts, and a run
gives the same bits on a busy machine as on an idle one.
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
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""

Ask = Callable[[Task, str], Future[Any]]
"""A function that starts to judge an answer to a task and returns the verdict as a future."""

Context = Literal["all", "last", "best"]
Reasoning = Literal["keep", "summary", "drop"]


class Opening(Protocol):
    """A task with its first prompt, as messages and as token ids."""

    @property
    def task(self) -> Task: ...
    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Next:
    """The next prompt, as messages and as token ids."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """Makes the prompt that follows a verdict.

    Attributes:
        tokenizer: the model's tokenizer.
        max_turns: highest number of answers.
        template: the feedback template; see :func:`kernel_coder.prompts.build_feedback`.
        chat_template: as for :func:`kernel_coder.prompts.encode_prompt`.
        context: the earlier turns that a prompt shows: ``all``, the ``last`` or the ``best`` ``context_turns`` of them.
        context_turns: number of earlier turns for ``last`` and ``best``.
        rank: sort key of verdicts for ``best``; better verdicts have a higher key.
        earlier_reasoning: ``keep`` shows earlier answers unchanged, ``drop`` without their reasoning, ``summary`` with
            a summary of it (as in Kevin, whose model writes the summary).
        stop_when_correct: end the conversation after a correct answer.
        room: highest number of tokens in a prompt; a conversation whose next prompt is longer ends. None: no limit.

    A prompt that shows all earlier answers unchanged consists of the sampled ids. Any other prompt is encoded from its
    messages and forms a training sequence of its own.
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
        """Return the next prompt; None if the conversation ends."""
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
        """Return the feedback on that turn in the next prompt."""
        task, verdict = conversation.opening.task, conversation.verdicts[turn]
        now = len(conversation.turns)
        return build_feedback(task, verdict, self.template, turn=now, max_turns=self.max_turns)

    def _shown(self, conversation: Conversation) -> list[int]:
        """Return the turns that the next prompt shows, in order. The prompt ends with the feedback on the last of them.

        With ``best`` and more than one turn, the latest turn is always among them.
        """
        everything = list(range(len(conversation.turns)))
        if self.context == "all" or len(everything) <= self.context_turns:
            return everything
        if self.context == "last":
            return everything[-self.context_turns :]
        assert self.rank is not None, "context best needs a rank"
        ranks = [self.rank(verdict) for verdict in conversation.verdicts]
        best = sorted(everything, key=lambda k: (ranks[k], k), reverse=True)  # among equal turns, the later one first
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
            # Feedback contains the number of turns left, so earlier replies are repeated as they were and not built
            # again.
            reply = self._reply(conversation, k) if k == shown[-1] else list(_asked(tuple(conversation.replies[k])))
            messages += [Message(role="assistant", content=answer), *reply]
        return Next(tuple(messages), tuple(encode_prompt(self.tokenizer, messages, self.chat_template)))


def _asked(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without a last message that begins the answer."""
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation in progress."""

    opening: Opening
    seeds: Callable[[int], int]  # the seed of its n-th answer, from 0
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
    """Runs all conversations to their end; returns them in order.

    Args:
        engine: samples the answers.
        conversations: new conversations.
        sampling: sampling parameters.
        ask: starts to judge an answer; None: answers are not judged, and conversations have one turn.
        follow_up: makes the next prompt, or None to end the conversation; None: conversations have one turn.
        batch_size: number of conversations sampled at once; None: all.
        tasks_at_once: answers that end together are judged in the order of
            :func:`kernel_coder.tasks.order.in_turn` with this argument.
        fixed_batches: keep conversations in their first batch; a batch continues when all its verdicts have arrived.
            This gives the same bits however long verdicts take. Otherwise a batch takes all conversations that are
            ready, so that a slow verdict delays only its own conversation.
        overlap: sample while answers are judged: those of earlier batches and, if the engine reports each answer's end,
            those of the same batch. Set it to False if both use one GPU, because sampling would disturb the timing.
        poll: called often; may raise to stop.
        watch: returns a context manager for a name: ``rollout`` while sampling, ``judge`` while waiting.
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
    """Samples the next turn of each conversation in a batch; returns the futures of the verdicts, or [] without
    ``ask``.

    With ``overlap`` and an engine that reports each answer's end, judging starts while other answers are still being
    sampled.
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
    """Stores the verdicts and returns the conversations that have a next prompt."""
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
