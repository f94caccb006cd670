"""Conversations of several turns.

Later prompts hold exactly the token ids that the model sampled. Judging and sampling overlap. The answers do not depend
on how long a verdict takes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from chat_models import FORGETS, NAMES, tokenizer_of
from kernel_coder.judge import Verdict, example_verdict
from kernel_coder.judge.verdict import rank
from kernel_coder.models.tiny import tiny_model
from kernel_coder.prompts import Message, build_messages, encode_prompt
from kernel_coder.prompts.encode import render_prompt
from kernel_coder.rollout import (
    Conversation,
    FollowUp,
    Next,
    Rollout,
    Sampling,
    Turn,
    completion_seed,
    conversations,
    converse,
)
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.tasks import Task
from kernel_coder.train.batch import Batch, collate, forward_rows

TASK = Task(id="relu", source="test", reference="class Model: ...")
SAMPLING = Sampling(max_completion_length=12)
ASKED = [Message(role="user", content="?")]


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Question:
    """The first prompt."""

    task: Task
    messages: list[Message]
    ids: tuple[int, ...]


def question(tokenizer: Any, template: str = "nano", chat_template: str | None = None) -> Question:
    messages = build_messages(TASK, template)
    return Question(TASK, messages, tuple(encode_prompt(tokenizer, messages, chat_template)))


class Parrot:
    """Answers with random tokens. Some answers end, others are cut short. Remembers the prompts that it got."""

    def __init__(self, tokenizer: Any, ends: Sequence[int]) -> None:
        self.tokenizer, self.ends, self.seen = tokenizer, ends, list[tuple[int, ...]]()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], *, poll: Any = None
    ) -> list[Turn]:
        turns = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            self.seen.append(tuple(prompt))
            numbers = random.Random(seed)
            said = [numbers.randrange(3, len(self.tokenizer)) for _ in range(numbers.randrange(1, 20))]
            ended = seed % 3 > 0
            said += [self.ends[seed % 3 - 1]] if ended else []
            text = self.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            turns.append(Turn(tuple(prompt), tuple(said), (-1.0,) * len(said), text, "stop" if ended else "length"))
        return turns


def at_once(outcome: str = "wrong_output") -> Callable[[Task, str], Future[Verdict]]:
    def ask(task: Task, answer: str) -> Future[Verdict]:
        done: Future[Verdict] = Future()
        done.set_result(example_verdict(outcome, feedback="element 3 is 1, not 2."))
        return done

    return ask


def seeds(number: int) -> Callable[[int], int]:
    return lambda turn: completion_seed("test", number, turn)


def talk(tokenizer: Any, engine: Any, *, count: int = 1, template: str = "nano", **options: Any) -> list[Rollout]:
    plain = options.get("chat_template")
    start = [Conversation(question(tokenizer, template, plain), seeds(i)) for i in range(count)]
    ask = options.pop("ask", at_once())
    follow_up = FollowUp(tokenizer=tokenizer, **{"max_turns": 4, "rank": rank, **options})
    return converse(engine, start, SAMPLING, ask=ask, follow_up=follow_up)


# ---- token ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["nano", "kernel_coder"])  # without and with a system message
@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_four_turns_hold_the_sampled_ids_unchanged(name: str, template: str) -> None:
    tokenizer = tokenizer_of(name)
    engine = Parrot(tokenizer, [2, 0])
    changed = cut = ended = 0
    for rollout in talk(tokenizer, engine, count=12, template=template):
        assert len(rollout.turns) == 4
        assert rollout.turns[0].prompt_ids == tuple(encode_prompt(tokenizer, build_messages(TASK, template)))
        for earlier, turn, messages in zip(rollout.turns, rollout.turns[1:], rollout.shown[1:], strict=False):
            said = earlier.prompt_ids + earlier.completion_ids
            assert turn.prompt_ids[: len(said)] == said
            assert turn.continues(earlier)
            # The rest of the prompt is the text of the template. The end of the answer occurs exactly once.
            glue = tokenizer.decode(turn.prompt_ids[len(said) :], clean_up_tokenization_spaces=False)
            closed = earlier.completion_ids[-1] == tokenizer.eos_token_id
            assert glue == ("" if closed else "<|im_end|>") + (
                f"\n<|im_start|>user\n{messages[-1]['content']}<|im_end|>\n<|im_start|>assistant\n"
            )
            ended, cut = ended + closed, cut + (earlier.finish_reason == "length")
            changed += tuple(tokenizer.encode(earlier.text, add_special_tokens=False)) != earlier.completion_ids
        last = rollout.turns[-1]
        if all(turn.completion_ids[-1] == tokenizer.eos_token_id for turn in rollout.turns[:-1]):
            text = tokenizer.decode(last.prompt_ids, clean_up_tokenization_spaces=False)
            assert text == render_prompt(tokenizer, rollout.shown[-1])
        assert {turn.prompt_ids for turn in rollout.turns} <= set(engine.seen)
    assert min(changed, cut, ended) > 0  # each case must have occurred


@pytest.mark.parametrize("name", NAMES)
def test_mask_covers_exactly_the_sampled_tokens_of_one_row(name: str) -> None:
    tokenizer = tokenizer_of(name)
    (rollout,) = talk(tokenizer, Parrot(tokenizer, [2, 0]))
    turns = rollout.turns
    batch = Batch(turns, torch.ones(4), torch.ones(4, dtype=torch.bool), rollouts=(0,) * 4)
    assert forward_rows(batch, range(4)) == [[0, 1, 2, 3]]
    micro = collate(batch, 0, torch.device("cpu"))
    assert micro.ids.tolist() == [list(turns[-1].prompt_ids + turns[-1].completion_ids)]
    places = [len(t.prompt_ids) + i for t in turns for i in range(len(t.completion_ids))]
    assert (micro.rows + 1).tolist() == places
    assert micro.ids[0, places].tolist() == micro.targets.tolist() == [i for t in turns for i in t.completion_ids]
    sampled = torch.zeros(micro.ids.shape[1], dtype=torch.bool)
    sampled[places] = True
    kept = [micro.ids[0, i].item() for i in range(micro.ids.shape[1]) if not sampled[i]]
    assert len(kept) == micro.ids.shape[1] - sum(len(t.completion_ids) for t in turns)
    assert kept[: len(turns[0].prompt_ids)] == list(turns[0].prompt_ids)


@pytest.mark.parametrize("name", NAMES)
def test_one_forward_pass_over_four_turns_gives_the_log_probs_as_sampled(name: str) -> None:
    tokenizer = tokenizer_of(name)
    model = tiny_model(len(tokenizer), hidden=32).double().eval()
    for rollout in talk(tokenizer, TransformersEngine(model, tokenizer), count=2):
        turns = rollout.turns
        micro = collate(
            Batch(turns, torch.ones(4), torch.ones(4, dtype=torch.bool), rollouts=(0,) * 4), 0, torch.device("cpu")
        )
        with torch.no_grad():
            logits = model(micro.ids).logits[0, micro.rows].float()
        found = torch.log_softmax(logits, 1).gather(1, micro.targets[:, None])[:, 0]
        torch.testing.assert_close(found, micro.rollout_logprobs, atol=1e-5, rtol=0)


def test_plain_text_is_continued_as_it_was_sampled() -> None:
    tokenizer = tokenizer_of("tiny")
    for rollout in talk(tokenizer, Parrot(tokenizer, [2, 0]), count=6, chat_template="plain"):
        for earlier, turn, messages in zip(rollout.turns, rollout.turns[1:], rollout.shown[1:], strict=False):
            said = earlier.prompt_ids + earlier.completion_ids
            assert turn.prompt_ids[: len(said)] == said
            assert tokenizer.decode(turn.prompt_ids[len(said) :]) == f"\n\n{messages[-1]['content']}\n"


def test_a_template_that_rewrites_earlier_turns_is_refused_and_can_be_used_without_reasoning() -> None:
    tokenizer = tokenizer_of("tiny")
    forgets = tokenizer.__class__(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    forgets.chat_template = FORGETS
    with pytest.raises(ValueError, match=r"set rollout\.earlier_reasoning to drop"):
        talk(forgets, Parrot(forgets, [2, 0]))
    (rollout,) = talk(forgets, Script(forgets, ["<think>Hm.</think> x"] * 4), earlier_reasoning="drop")
    assert forgets.decode(rollout.turns[-1].prompt_ids).count("<|im_start|>assistant\nx<|im_end|>") == 3


def test_answer_that_the_template_begins_keeps_its_beginning_in_every_turn(tmp_path: Any) -> None:
    (tmp_path / "ask.jinja").write_text(
        "{% block user %}{{ reference }}{% endblock %}{% block assistant %}<answer>{% endblock %}"
    )
    (tmp_path / "tell.jinja").write_text(
        "{% block user %}{{ feedback }}{% endblock %}{% block assistant %}<again>{% endblock %}"
    )
    tokenizer = tokenizer_of("nano")
    start = [Conversation(question(tokenizer, str(tmp_path / "ask.jinja")), seeds(1))]
    follow_up = FollowUp(tokenizer=tokenizer, max_turns=3, template=tmp_path / "tell.jinja")
    (rollout,) = converse(Parrot(tokenizer, [2, 0]), start, SAMPLING, ask=at_once(), follow_up=follow_up)
    assert [answer.startswith(begun) for answer, begun in zip(rollout.answers, ["<answer>", "<again>"], strict=False)]
    text = tokenizer.decode(rollout.turns[1].prompt_ids)
    assert text.endswith("<|im_start|>assistant\n<again>")
    assert f"<answer>{rollout.turns[0].text}" in tokenizer.decode(rollout.turns[1].prompt_ids, skip_special_tokens=True)
    assert [message["role"] for message in rollout.shown[2]] == [*["user", "assistant"] * 2, "user", "assistant"]


# ---- what later turns see --------------------------------------------------------------------------------------------


class Script:
    """Gives the prepared answers, one line a turn."""

    def __init__(self, tokenizer: Any, lines: Sequence[str]) -> None:
        self.tokenizer, self.lines, self.said = tokenizer, list(lines), 0

    def generate(self, prompts: Any, sampling: Any, seeds: Any, *, poll: Any = None) -> list[Turn]:
        turns = []
        for prompt in prompts:
            text = self.lines[self.said]
            self.said += 1
            ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
            turns.append(Turn(tuple(prompt), ids, (0.0,) * len(ids), text, "stop"))
        return turns


def by_first_word(task: Task, answer: str) -> Future[Verdict]:
    done: Future[Verdict] = Future()
    outcome, _, speedup = answer.split("\n")[0].partition(" ")
    done.set_result(example_verdict(outcome, speedup=float(speedup) if speedup else None, feedback=f"On {outcome}."))
    return done


LINES = ["wrong_output", "correct 2.0", "compile_error", "correct 1.5", "timeout"]


@pytest.mark.parametrize(
    ("context", "turns", "seen"),
    [
        ("all", 1, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
        ("last", 1, [[0], [1], [2], [3]]),
        ("last", 2, [[0], [0, 1], [1, 2], [2, 3]]),
        ("best", 1, [[0], [1], [1], [1]]),
        ("best", 2, [[0], [0, 1], [1, 2], [1, 3]]),
        ("best", 3, [[0], [0, 1], [0, 1, 2], [0, 1, 3]]),
    ],
)
def test_context_shows_the_turns_that_it_names(context: str, turns: int, seen: list[list[int]]) -> None:
    tokenizer = tokenizer_of("nano")
    (rollout,) = talk(
        tokenizer, Script(tokenizer, LINES), max_turns=5, ask=by_first_word, context=context, context_turns=turns
    )
    for shown, wanted in zip(rollout.shown[1:], seen, strict=True):
        assert [m["content"] for m in shown if m["role"] == "assistant"] == [LINES[k] for k in wanted]
        assert [m["role"] for m in shown] == ["user", *["assistant", "user"] * len(wanted)]
        assert f"On {LINES[wanted[-1]].split()[0]}." in shown[-1]["content"]
    chained = [turn.continues(earlier) for earlier, turn in zip(rollout.turns, rollout.turns[1:], strict=False)]
    assert chained == [wanted == list(range(k + 1)) for k, wanted in enumerate(seen)]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ("drop", "<answer>x</answer>"),
        ("summary", "<thinking>\nTwo loads.\n</thinking>\n<answer>x</answer>"),
        ("keep", "<thinking>Long.\n\nTwo loads.</thinking>\n<answer>x</answer>"),
    ],
)
def test_earlier_reasoning_is_kept_summarised_or_dropped(kept: str, said: str) -> None:
    tokenizer = tokenizer_of("smollm2")
    lines = ["<thinking>Long.\n\nTwo loads.</thinking>\n<answer>x</answer>"] * 3
    (rollout,) = talk(tokenizer, Script(tokenizer, lines), max_turns=3, earlier_reasoning=kept)
    assert [m["content"] for m in rollout.shown[-1] if m["role"] == "assistant"] == [said, said]
    assert rollout.turns[2].prompt_ids == tuple(encode_prompt(tokenizer, rollout.shown[-1]))
    assert rollout.turns[2].continues(rollout.turns[1]) == (kept == "keep")


def test_conversation_ends_at_max_turns_at_a_correct_answer_without_room_or_without_feedback() -> None:
    tokenizer = tokenizer_of("nano")

    def lengths(lines: list[str], **options: Any) -> int:
        return len(talk(tokenizer, Script(tokenizer, lines), ask=by_first_word, **options)[0].turns)

    assert lengths(LINES) == 4
    assert lengths(LINES, max_turns=1) == 1
    assert lengths(LINES, stop_when_correct=True) == 2
    assert lengths(["wrong_output", "harness_failed", "correct"]) == 2  # a failure of the judge gives no feedback
    room = len(question(tokenizer).ids)
    assert lengths(LINES, room=room) == 1
    (whole,) = talk(tokenizer, Script(tokenizer, LINES), ask=by_first_word)
    assert lengths(LINES, room=len(whole.turns[2].prompt_ids) - 1) == 2
    assert lengths(LINES, room=len(whole.turns[2].prompt_ids)) == 3
    (alone,) = converse(Script(tokenizer, LINES), [Conversation(question(tokenizer), seeds(0))], SAMPLING)
    assert (len(alone.turns), alone.verdicts) == (1, (None,))


# ---- time ------------------------------------------------------------------------------------------------------------


class Slow:
    """An engine and a judge that need a fixed time for each batch and each verdict."""

    def __init__(self, batch_s: float, verdict_s: float, workers: int) -> None:
        self.batch_s, self.verdict_s = batch_s, verdict_s
        self.pool = ThreadPoolExecutor(workers)
        self.judged = 0
        self.lock = threading.Lock()

    def generate(self, prompts: Any, sampling: Any, seeds: Any, *, poll: Any = None) -> list[Turn]:
        time.sleep(self.batch_s)
        return [Turn(tuple(prompt), (1,), (0.0,), "x", "stop") for prompt in prompts]

    def ask(self, task: Task, answer: str) -> Future[Verdict]:
        return self.pool.submit(self._judge)

    def _judge(self) -> Verdict:
        time.sleep(self.verdict_s)
        with self.lock:
            self.judged += 1
        return example_verdict("wrong_output")


def onwards(turns: int) -> Callable[[Conversation], Next | None]:
    return lambda one: Next(tuple(ASKED), (*one.turns[-1].prompt_ids, 1)) if len(one.turns) < turns else None


class Clock:
    """An engine and a judge with a simulated clock, so the results do not depend on how busy the machine is.

    Sampling and waiting for a verdict move the clock forward. Each poll moves it a little.
    """

    def __init__(self, batch_s: float, verdict_s: float, workers: int) -> None:
        self.batch_s, self.verdict_s = batch_s, verdict_s
        self.now, self.sampled, self.judged = 0.0, 0, 0
        self.free_at = [0.0] * workers
        self.under_way: list[tuple[float, Future[Verdict]]] = []

    def generate(self, prompts: Any, sampling: Any, seeds: Any, *, poll: Any = None) -> list[Turn]:
        self.sampled += 1
        self._go_on(self.now + self.batch_s)
        return [Turn(tuple(prompt), (1,), (0.0,), "x", "stop") for prompt in prompts]

    def ask(self, task: Task, answer: str) -> Future[Verdict]:
        worker = min(range(len(self.free_at)), key=self.free_at.__getitem__)
        self.free_at[worker] = max(self.now, self.free_at[worker]) + self.verdict_s
        self.under_way.append((self.free_at[worker], Future()))
        return self.under_way[-1][1]

    def wait(self, open_: set[Future[Verdict]], *_: Any, **__: Any) -> None:
        self._go_on(min(at for at, future in self.under_way if future in open_))

    def tick(self) -> None:
        self._go_on(self.now + 1e-3)

    def _go_on(self, until: float) -> None:
        self.now = until
        for at, future in self.under_way:
            if at <= until and not future.done():
                self.judged += 1
                future.set_result(example_verdict("wrong_output"))


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("batch_s", "workers"), [(1.0, 4), (0.125, 2), (2.0, 8)])
def test_sampling_and_judging_overlap(
    monkeypatch: pytest.MonkeyPatch, batch_s: float, workers: int, fixed: bool
) -> None:
    """With overlap, the total is at most 1.25 times the longer of sampling and judging. Without, it is longer."""

    def taken(overlap: bool) -> tuple[float, float]:
        clock = Clock(batch_s, 1.0, workers)
        monkeypatch.setattr(conversations, "wait", clock.wait)
        start = [Conversation(Question(TASK, ASKED, (i,)), seeds(i)) for i in range(8)]
        more: dict[str, Any] = {"batch_size": 4, "fixed_batches": fixed, "overlap": overlap, "poll": clock.tick}
        rollouts = converse(clock, start, SAMPLING, ask=clock.ask, follow_up=onwards(3), **more)
        assert [len(one.turns) for one in rollouts] == [3] * 8
        assert clock.judged == 24
        return clock.now, max(clock.sampled * batch_s, 24 * 1.0 / workers)

    together, alone = taken(overlap=True)
    assert together <= 1.25 * alone
    in_turn, _ = taken(overlap=False)
    assert in_turn > together


@pytest.mark.parametrize("overlap", [True, False])
def test_answers_are_judged_as_they_end_if_overlap_is_on(overlap: bool) -> None:
    asked_beside: list[str] = []
    pool = ThreadPoolExecutor(2)
    is_writing = False

    class Telling:
        tells_of_ends = True

        def generate(self, prompts: Any, *_: Any, poll: Any = None, ended: Any = None) -> list[Turn]:
            nonlocal is_writing
            is_writing = True
            turns = [Turn(tuple(prompt), (1,), (0.0,), f"answer {prompt[0]}", "stop") for prompt in prompts]
            for place in (2, 0, 1) if ended else ():
                ended(place, turns[place])
            is_writing = False
            return turns

    def ask(task: Task, answer: str) -> Future[Verdict]:
        if is_writing:
            asked_beside.append(answer)
        return pool.submit(example_verdict, "wrong_output", reason=answer)

    start = [Conversation(Question(TASK, ASKED, (i,)), seeds(i)) for i in range(3)]
    rollouts = converse(Telling(), start, SAMPLING, ask=ask, overlap=overlap)  # type: ignore[arg-type]
    assert asked_beside == (["answer 2", "answer 0", "answer 1"] if overlap else [])
    assert [one.verdicts[0].reason for one in rollouts] == ["answer 0", "answer 1", "answer 2"]


@pytest.mark.parametrize(("at_once", "order"), [(1, "aaabbbccc"), (2, "abababccc"), (3, "abcabcabc")])
def test_tasks_take_turns_with_the_judge_and_verdicts_stay_with_their_answers(at_once: int, order: str) -> None:
    asked: list[str] = []

    def ask(task: Task, answer: str) -> Future[Verdict]:
        asked.append(task.id)
        done: Future[Verdict] = Future()
        done.set_result(example_verdict("wrong_output", reason=f"{task.id}: {answer}"))
        return done

    class Numbered:
        def generate(self, prompts: Any, *_: Any, poll: Any = None) -> list[Turn]:
            return [Turn(tuple(prompt), (1,), (0.0,), f"answer {prompt[0]}", "stop") for prompt in prompts]

    tasks = [replace(TASK, id=name) for name in "abc"]
    start = [Conversation(Question(task, ASKED, (i,)), seeds(i)) for task in tasks for i in range(3)]
    rollouts = converse(Numbered(), start, SAMPLING, ask=ask, tasks_at_once=at_once)
    assert "".join(asked) == order
    for rollout in rollouts:
        assert rollout.verdicts[0].reason == f"{rollout.task.id}: {rollout.answers[0]}"


def test_without_overlap_nothing_is_sampled_while_something_is_judged() -> None:
    slow, judging = Slow(0.0, 0.05, 4), 0
    sampled_beside: list[int] = []
    ask, generate = slow.ask, slow.generate

    def counting(task: Task, answer: str) -> Future[Verdict]:
        nonlocal judging
        judging += 1
        done = ask(task, answer)
        return done

    def watched(*given: Any, **more: Any) -> list[Turn]:
        sampled_beside.append(judging - slow.judged)
        return generate(*given, **more)

    slow.generate = watched  # type: ignore[method-assign]
    start = [Conversation(Question(TASK, ASKED, (i,)), seeds(i)) for i in range(6)]
    converse(slow, start, SAMPLING, ask=counting, follow_up=onwards(2), batch_size=3, overlap=False)
    assert sampled_beside == [0, 0, 0, 0]


def test_slow_verdict_holds_up_only_its_own_conversation_or_its_fixed_batch() -> None:
    """Free batches hold up only the conversation itself. A fixed batch waits for its slowest verdict."""

    def finished(fixed: bool) -> list[int]:
        done: list[int] = []
        release = threading.Event()
        pool = ThreadPoolExecutor(8)

        def verdict(i: int) -> Verdict:
            if i == 0:
                assert release.wait(20)
            return example_verdict("wrong_output")

        class Engine:
            def generate(self, prompts: Any, *_: Any, **__: Any) -> list[Turn]:
                done.extend(prompt[0] for prompt in prompts if len(prompt) == 3)
                if len(done) == (4 if fixed else 7):
                    release.set()
                return [Turn(tuple(prompt), (1,), (0.0,), str(prompt[0]), "stop") for prompt in prompts]

        start = [Conversation(Question(TASK, ASKED, (i,)), seeds(i)) for i in range(8)]
        converse(
            Engine(),
            start,
            SAMPLING,
            ask=lambda task, answer: pool.submit(verdict, int(answer)),
            follow_up=onwards(3),
            batch_size=4,
            fixed_batches=fixed,
        )
        return done

    assert finished(True) == [4, 5, 6, 7, 0, 1, 2, 3]
    assert finished(False)[-1] == 0


def test_duration_of_verdicts_changes_no_token_and_no_log_prob() -> None:
    tokenizer = tokenizer_of("tiny")
    engine = TransformersEngine(tiny_model(len(tokenizer), hidden=32), tokenizer)

    def run(delays: random.Random) -> list[Rollout]:
        with ThreadPoolExecutor(3) as pool:

            def verdict(answer: str) -> Verdict:
                time.sleep(delays.random() / 50)
                return example_verdict("correct" if len(answer) % 2 else "timeout", feedback="hm")

            start = [Conversation(question(tokenizer), seeds(i)) for i in range(6)]
            return converse(
                engine,
                start,
                SAMPLING,
                ask=lambda task, answer: pool.submit(verdict, answer),
                follow_up=FollowUp(tokenizer=tokenizer, max_turns=3, template="nano", stop_when_correct=True),
                batch_size=2,
            )

    first = run(random.Random(1))
    assert len({len(one.turns) for one in first}) > 1  # conversations of different lengths
    again = run(random.Random(2))
    assert [one.turns for one in again] == [one.turns for one in first]  # turns include log-probs


def test_poll_that_raises_ends_the_conversations_and_cancels_waiting_verdicts() -> None:
    slow = Slow(0.0, 0.2, 1)
    asked: list[Future[Verdict]] = []

    def ask(task: Task, answer: str) -> Future[Verdict]:
        asked.append(slow.ask(task, answer))
        return asked[-1]

    def stop() -> None:
        if asked:
            raise KeyboardInterrupt

    start = [Conversation(Question(TASK, ASKED, (i,)), seeds(i)) for i in range(4)]
    with pytest.raises(KeyboardInterrupt):
        converse(slow, start, SAMPLING, ask=ask, follow_up=onwards(2), poll=stop)
    assert sum(one.cancelled() for one in asked) >= 2
