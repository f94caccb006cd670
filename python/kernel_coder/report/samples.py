"""Chooses the answers of a run that the page shows, and prepares their contents.

A run can have millions of answers, so they are read once and only a bounded number is kept.
"""

from __future__ import annotations

import difflib
import hashlib
import heapq
import json
import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_coder.ops import parse_response

EXAMPLES = 3
"""Number of answers kept as examples of each outcome and of each kind of rejection."""

KINDS = 200
"""Upper limit for the kinds of reasons that are counted separately in one outcome, to limit the memory."""

MAX_TEXT = 16_000
"""Upper limit for a text on the page, in characters; the rest is cut off. Nearly all answers are shorter."""

MAX_TEXTS = 5_000_000
"""Upper limit for the length of all texts on the page, in characters, so that browsers open it quickly."""

DIFF_LINES = 300
"""Upper limit, in lines, for texts that are compared line by line, because difflib takes quadratic time."""

REJECTED = "rejected"
CORRECT = "correct"

_QUOTED = re.compile(r"`[^`\n]{0,200}`|'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"")
_NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d.,]*(e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Chosen:
    """Counts over all answers, and the records of the chosen ones."""

    total: int = 0
    records: tuple[Mapping[str, Any], ...] = ()  # in the order of steps
    why: tuple[str, ...] = ()  # the reason why each record was chosen
    outcomes: Mapping[int, Counter[str]] = field(default_factory=dict)  # number of answers by step and outcome
    reasons: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)  # by (outcome, kind) and step

    def outcomes_in_all(self) -> Counter[str]:
        """Return the number of answers by outcome, over all steps."""
        return sum(self.outcomes.values(), Counter())


class Chooser:
    """Chooses at most ``limit`` answers. :meth:`see` takes every answer of a run once, in the order of the file."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seen = 0
        self._counts: Counter[int] = Counter()
        self._outcomes: dict[int, Counter[str]] = {}
        self._reasons: dict[tuple[str, str], dict[int, int]] = {}
        self._last_step = -1
        self._latest: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=max(limit, 1))
        self._first: list[tuple[int, Mapping[str, Any]]] = []
        self._best: list[tuple[tuple[float, float], int, str, Mapping[str, Any]]] = []  # a heap with the worst first
        self._best_texts: set[str] = set()
        self._examples: dict[tuple[str, str], deque[tuple[int, Mapping[str, Any]]]] = {}

    def see(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        if step < self._last_step:
            self._forget(step)
        self._last_step = step
        self._seen += 1
        self._counts[step] += 1
        for answer in answers_of(record):
            self._see_verdict(step, answer, record)
        self._latest.append((self._seen, record))
        if len(self._first) < max(self.limit // 10, 1):
            self._first.append((self._seen, record))
        self._see_best(record)

    def _see_verdict(self, step: int, answer: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        outcome = outcome_of(answer)
        if outcome is None:
            return
        kind = ""
        self._outcomes.setdefault(step, Counter())[outcome] += 1
        if outcome != CORRECT:
            kind = self._known_kind(outcome, kind_of(reason_of(answer)))
            by_step = self._reasons.setdefault((outcome, kind), {})
            by_step[step] = by_step.get(step, 0) + 1
        which = (outcome, kind if outcome == REJECTED else "")
        kept = self._examples.setdefault(which, deque(maxlen=EXAMPLES))
        if not kept or kept[-1][0] != self._seen:
            kept.append((self._seen, record))

    def _see_best(self, record: Mapping[str, Any]) -> None:
        reward = number(record.get("reward"))
        if reward is None or self.limit < 2:
            return
        worth = (reward, number(verdict_of(record).get("speedup")) or 0.0)
        size = self.limit // 2
        if len(self._best) >= size and worth < self._best[0][0]:
            return
        answer = f"{record.get('task')}\n{record.get('completion')}"
        text = hashlib.sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()
        if text in self._best_texts:
            return
        self._best_texts.add(text)
        heapq.heappush(self._best, (worth, self._seen, text, record))
        if len(self._best) > size:
            self._best_texts.discard(heapq.heappop(self._best)[2])

    def _known_kind(self, outcome: str, kind: str) -> str:
        if (outcome, kind) in self._reasons or sum(known == outcome for known, _ in self._reasons) < KINDS:
            return kind
        return "something else"

    def _forget(self, step: int) -> None:
        """Drops the answers from this step on, because the run was resumed from an earlier checkpoint."""
        self._seen -= sum(count for at, count in self._counts.items() if at >= step)
        self._counts = Counter({at: count for at, count in self._counts.items() if at < step})
        self._outcomes = {at: counts for at, counts in self._outcomes.items() if at < step}
        for key, by_step in list(self._reasons.items()):
            self._reasons[key] = {at: count for at, count in by_step.items() if at < step}
        self._latest = deque((one for one in self._latest if one[1]["step"] < step), self._latest.maxlen)
        self._first = [one for one in self._first if one[1]["step"] < step]
        self._best = [one for one in self._best if one[3]["step"] < step]
        heapq.heapify(self._best)
        self._best_texts = {text for _, _, text, _ in self._best}
        for key, kept in list(self._examples.items()):
            self._examples[key] = deque((one for one in kept if one[1]["step"] < step), EXAMPLES)

    def choose(self) -> Chosen:
        """Choose examples of every outcome (at most half of the answers), then the first, the best and the latest
        answers."""
        found: dict[int, tuple[Mapping[str, Any], str]] = {}

        def take(some: Iterable[tuple[int, Mapping[str, Any]]], why: str, limit: int = self.limit) -> None:
            for place, record in some:
                if len(found) < limit:
                    found.setdefault(place, (record, why))

        for (outcome, kind), kept in self._examples.items():
            take(kept, f"an example of {outcome}" + (f": {kind}" if kind else ""), -(-self.limit // 2))
        take(self._first, "one of the first")
        best = sorted(self._best, key=lambda one: one[:2], reverse=True)
        take(((place, record) for _, place, _, record in best), "one of the best")
        take(reversed(self._latest), "one of the latest")
        ordered = sorted(found.items())
        return Chosen(
            total=self._seen,
            records=tuple(record for _, (record, _) in ordered),
            why=tuple(why for _, (_, why) in ordered),
            outcomes=self._outcomes,
            reasons={key: by_step for key, by_step in self._reasons.items() if by_step},
        )


def answers_of(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the answers of a record, each with its verdict: the turns of a conversation, or the record itself."""
    turns = record.get("turns")
    found = [turn for turn in turns if isinstance(turn, Mapping)] if isinstance(turns, list) else []
    return found or [record]


def verdict_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the verdict in a record; empty if there is none."""
    verdict = record.get("verdict")
    if isinstance(verdict, Mapping):
        return verdict
    return {name: record[name] for name in ("outcome", "reason") if record.get(name) is not None}


def outcome_of(record: Mapping[str, Any]) -> str | None:
    outcome = verdict_of(record).get("outcome")
    return outcome if isinstance(outcome, str) else None


def reason_of(record: Mapping[str, Any]) -> str:
    reason = verdict_of(record).get("reason")
    return reason if isinstance(reason, str) else ""


def kind_of(reason: str) -> str:
    """Return the reason with numbers and quoted names replaced by …, so that similar reasons are counted together.

    >>> kind_of("no kernel of its own: no triton kernel was launched")
    'no kernel of its own: no triton kernel was launched'
    >>> kind_of("a call takes 0.003 ms, and 'x' alone takes 1.2e-3 ms")
    'a call takes … ms, and … alone takes … ms'
    """
    line = reason[:500].strip().partition("\n")[0]
    shown = _NUMBER.sub("…", _QUOTED.sub("…", line))
    return (shown if len(shown) <= 120 else f"{shown[:119]}…") or "no reason given"


def number(value: Any) -> float | None:
    """Return the value as a float if it is a finite number, otherwise None.

    >>> number(1), number(None), number(float("nan")), number(True)
    (1.0, None, None, None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    return None


# ---- the contents of an answer


@dataclass(frozen=True)
class Reference:
    """A text with which an answer is compared."""

    label: str
    text: str


def references(run_config: Mapping[str, Any], wanted: set[str]) -> dict[str, Reference]:
    """Return the known solutions, or else references, of the wanted tasks by id, if the run's data are on this
    machine."""
    from pathlib import Path

    from kernel_coder.tasks import load_tasks

    found: dict[str, Reference] = {}
    data, held_out = run_config.get("data"), run_config.get("eval")
    for section in (data, held_out):
        path = section.get("path") if isinstance(section, Mapping) else None
        if not isinstance(path, str) or not (path == "packaged" or Path(path).exists()):
            continue  # the hub is never asked, so that the report works offline
        try:
            layout = str(data.get("format") or "auto") if isinstance(data, Mapping) else "auto"
            tasks = load_tasks(path, format=layout)
        except Exception:  # the data may have changed since the run; the report works without them
            continue
        for task in tasks:
            if task.id in wanted:
                if task.solution is not None:
                    found[task.id] = Reference("the known solution", task.solution)
                else:
                    found[task.id] = Reference("the reference", task.reference)
    return found


def asked_module(prompt: Any) -> str | None:
    """Return the last module in the messages of a prompt, which is the one to rewrite."""
    blocks: list[str] = []
    for message in messages_of(prompt):
        if message["role"] != "assistant":
            blocks += re.findall(r"^(?:```|~~~)[^\n]*\n(.*?)^(?:```|~~~)", message["content"], re.MULTILINE | re.DOTALL)
    return next((block.strip("\n") for block in reversed(blocks) if "class " in block), None)


def messages_of(prompt: Any) -> list[dict[str, str]]:
    """Return a prompt, given as text or messages, as messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    found = []
    for message in prompt if isinstance(prompt, Sequence) else ():
        if isinstance(message, Mapping):
            found.append({"role": str(message.get("role", "")), "content": str(message.get("content", ""))})
    return found


def apart(answer: str) -> dict[str, Any]:
    """Return an answer's thinking and code, and its whole text if it does not have the requested form.

    >>> apart("<thinking>Hm.</thinking><answer>```python\\nx = 1\\n```</answer>")
    {'thinking': 'Hm.', 'code': 'x = 1', 'whole': None, 'form': None}
    """
    response = parse_response(answer)
    code = response.code
    return {
        "thinking": response.thinking if response.thinking and code is not None else None,
        "code": code,
        "whole": None if response.ok else answer,
        "form": response.error,
    }


def difference(reference: str, code: str) -> list[tuple[str, str]] | None:
    """Return the lines of a unified diff with their kinds (+, -, @ or a space); None if a text is too long."""
    before, after = reference.splitlines(), code.splitlines()
    if max(len(before), len(after)) > DIFF_LINES or max(map(len, (*before, *after)), default=0) > 2000:
        return None
    lines = difflib.unified_diff(before, after, n=3, lineterm="")
    return [("@" if line.startswith("@@") else line[:1], line) for line in lines][2:]


def turns_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the turns of a conversation, each with the messages before it, the answer and its outcome."""
    turns = record.get("turns")
    if isinstance(turns, Sequence) and not isinstance(turns, str):
        found = []
        for turn in turns:
            if isinstance(turn, Mapping):
                found.append(
                    {
                        "before": messages_of(turn.get("reply")),
                        "answer": str(turn.get("completion", turn.get("content", ""))),
                        "outcome": outcome_of(turn),
                        "reason": reason_of(turn),
                        "reward": number(turn.get("reward")),
                    }
                )
            else:
                found.append({"before": [], "answer": str(turn), "outcome": None, "reason": "", "reward": None})
        return found
    found = []
    before: list[dict[str, str]] = []
    for message in messages_of(record.get("conversation")):
        if message["role"] == "assistant":
            answer = {"answer": message["content"], "outcome": None, "reason": "", "reward": None}
            found.append({"before": before, **answer})
            before = []
        else:
            before = [*before, message]
    return found


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text, cut off after ``limit`` characters.

    >>> shortened("abcdef", 4)
    'abcd\\n[2 more characters]'
    """
    return text if len(text) <= limit else f"{text[:limit]}\n[{len(text) - limit:,} more characters]"


def shown_verdict(verdict: Mapping[str, Any]) -> str:
    """Return the verdict as the page shows it: one field a line; of the measured times only their number."""
    fields = dict(verdict)
    for name in ("runtimes_ms", "reference_runtimes_ms"):
        if isinstance(fields.get(name), list) and fields[name]:
            fields[name] = f"{len(fields[name])} times, in samples.jsonl"
    fields.pop("feedback", None)
    return json.dumps(fields, indent=2, ensure_ascii=False)
