"""Evaluation over several turns: after each verdict the model gets feedback and answers again.

The first turn is stored like an evaluation with one turn. Each later turn has a folder ``turn_2``, ``turn_3``, ... of
the same form. The final results use the best turn of each sample; ``turns.json`` and ``turns.md`` hold the metrics
after every turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from kernel_coder.evaluate.answers import Key, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import UsageError
from kernel_coder.evaluate.report import Results, percent, with_interval
from kernel_coder.evaluate.store import Sample, Store, write
from kernel_coder.judge import Verdict
from kernel_coder.judge.verdict import rank
from kernel_coder.prompts import Message, build_feedback, build_messages, check_feedback_template, short_answer
from kernel_coder.rollout import completion_seed
from kernel_coder.tasks import Task, TaskSet

Collect = Callable[[Sequence[Request], Store], None]
"""Collects the answers and verdicts that a store lacks."""

RECORD, TABLE = "turns.json", "turns.md"


def further_turns(
    config: EvaluateConfig, tasks: TaskSet, first: Store, collect: Collect, *, resume: bool
) -> tuple[Results, list[Results]]:
    """Runs the turns after the first. Returns the results of the best turns, and the results after each turn."""
    try:
        check_feedback_template(config.feedback_template)
    except ValueError as error:
        raise UsageError(str(error)) from None
    samples, verdicts = dict(first.samples), dict(first.verdicts)
    last = dict(first.samples), dict(first.verdicts)
    after = [Results(config, tasks, dict(samples), dict(verdicts))]
    for turn in range(2, config.turns + 1):
        requests = next_requests(config, tasks, last[0], last[1], turn)
        folder = Path(config.output) / f"turn_{turn}"
        with Store(folder, config, resume=resume) as store:
            collect(requests, store)
            done = {request.key for request in requests}
            last = (
                {**last[0], **{key: store.samples[key] for key in done}},
                {**last[1], **{key: store.verdicts[key] for key in done}},
            )
        for key in done:
            if rank(last[1][key]) > rank(verdicts[key]):
                samples[key], verdicts[key] = last[0][key], last[1][key]
        after.append(Results(config, tasks, dict(samples), dict(verdicts)))
    return after[-1], after


def next_requests(
    config: EvaluateConfig,
    tasks: Sequence[Task],
    samples: Mapping[Key, Sample],
    verdicts: Mapping[Key, Verdict],
    turn: int,
) -> list[Request]:
    """Return the requests of a later turn.

    There is none after a refused prompt, and with ``stop_when_correct`` none after a correct answer. After
    ``harness_failed`` there is no feedback, so the same prompt is repeated.
    """
    requests = []
    for task in tasks:
        opening = len(build_messages(task, config.prompt_template, one_shot=config.one_shot))
        for number in range(config.answers):
            key = task.id, number
            sample, verdict = samples[key], verdicts[key]
            if (config.stop_when_correct and verdict.correct) or sample.finish_reason == "refused":
                continue
            messages = sample.messages
            if verdict.is_scored:
                reply = build_feedback(task, verdict, config.feedback_template, turn=turn - 1, max_turns=config.turns)
                answer = Message(role="assistant", content=shortened(sample.text, config.earlier_reasoning))
                # A template may begin the answer in a last message, which the stored answer already includes.
                prompt = messages[:-1] if messages[-1]["role"] == "assistant" else messages
                fixed = opening - (messages[opening - 1]["role"] == "assistant")
                earlier = prompt[fixed:][-2 * (config.context_turns - 1) :] if config.context_turns > 1 else ()
                feedback = [message for message in reply if message["role"] != "assistant"]
                messages = (*prompt[:fixed], *earlier, answer, *feedback)
            run_seed, index = config.seed_of(number)
            seed = completion_seed(run_seed, task.id, index, "turn", turn)
            requests.append(Request(task, number, tuple(messages), seed))
    return requests


def shortened(text: str, reasoning: str) -> str:
    """Return an answer in the form that the prompts of later turns show; ``reasoning`` is ``config.earlier_reasoning``.

    >>> shortened("<think>Hm.</think>\\n<thinking>Two loads.</thinking><answer>x</answer>", "drop")
    '<answer>x</answer>'
    """
    if reasoning == "keep":
        return text
    return short_answer(re.sub(r"^.*</think>\s*", "", text, flags=re.DOTALL), summary=reasoning == "summary")


def write_turns(folder: Path, after: Sequence[Results]) -> None:
    """Writes turns.json and turns.md: the metrics of each sample's best answer in the first t turns, for every t."""
    record = [{"turns": turn, **asdict(results.summary)} for turn, results in enumerate(after, start=1)]
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write(folder / RECORD, orjson.dumps(record, option=options).decode())
    write(folder / TABLE, table(after))


def table(after: Sequence[Results]) -> str:
    """Return turns.md: a row for each number of turns, with columns for one sample and for the best of several."""
    first = after[0].summary
    ks = list(first.pass_at_k["correct"])
    thresholds = [p for p in first.fast_p["eager"] if p != "0"]
    header = ["turns", "correct", *(f"fast_{p}" for p in thresholds)]
    header += [f"{name}, best of {k} samples" for name in ("correct", "fast_1") for k in ks if k != "1"]
    rows = []
    for turn, results in enumerate(after, start=1):
        summary = results.summary
        row: list[Any] = [str(turn), with_interval(summary.correct)]
        row += [percent(summary.fast_p["eager"][p].value) for p in thresholds]
        row += [percent(summary.pass_at_k[name][k].value) for name in ("correct", "fast_1") for k in ks if k != "1"]
        rows.append(row)
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join([' --: '] * len(header))}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])
