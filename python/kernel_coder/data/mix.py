"""Makes a corpus of right and wrong answers for a warm-up.

``kernel-coder data mix PAIRS --out FILE.parquet``. A model that is trained on this corpus writes right and wrong
answers, like one that is trained on code of the internet, so that reinforcement learning can choose between them
(docs/sft.md). The same pairs and seed give the same file, except where the judge's feedback quotes uninitialised
memory.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernel_coder.prompts import Example, Message, build_answer, build_feedback, build_messages
from kernel_coder.tasks import Task, load_tasks
from kernel_coder.tasks.generator.bugs import plant_bug
from kernel_coder.tasks.generator.fingerprint import fingerprint, minhash, module_shingles
from kernel_coder.tasks.generator.tuning import retune

T = TypeVar("T")
U = TypeVar("U")

MIN_PARALLEL_PAIRS = 2000
"""Number of pairs from which on several processes are used; for fewer, starting them takes longer than they save."""

TEMPLATE = "nano"
"""Name of the template of prompts and of feedback."""

KERNEL = re.compile(r"^@triton\.jit\ndef (\w+)\(", re.MULTILINE)
FORWARD = re.compile(r"^class ModelNew\b.*?^    def forward\(self, ([^)]*)\):", re.MULTILINE | re.DOTALL)
INPUTS = ("x", "y", "z")
"""The names of a module's inputs in an answer with plain inputs, by their position."""


def plain_names(code: str, solution: str | None = None, *, inputs: bool = False) -> str:
    """Return the code with its one kernel called ``kernel``; with `inputs` also up to three inputs called ``x``, ``y``,
    ``z``.

    The names of a kernel and of its inputs carry no information beyond that of the module, but a small model would have
    to learn to repeat them. The names are looked up in `solution` (None: in `code`), of which `code` may be a form with
    a bug. A name is kept if there are several kernels or none, or if the new name is already used.

    >>> plain_names("@triton.jit\\ndef relu_kernel(x): ...\\nrelu_kernel[(1,)](x)")
    '@triton.jit\\ndef kernel(x): ...\\nkernel[(1,)](x)'
    """
    known = code if solution is None else solution
    names = KERNEL.findall(known)
    if len(names) != 1:
        return code
    code = re.sub(rf"\b{names[0]}\b", "kernel", code)
    forward = FORWARD.search(known)
    given = forward[1].split(", ") if inputs and forward else []
    if not given or len(given) > len(INPUTS) or not all(name.isidentifier() for name in given):
        return code
    new = dict(zip(given, INPUTS, strict=False))
    if any(re.search(rf"\b{name}(_ptr)?\b", known) for name in set(new.values()) - set(given)):
        return code
    pattern = rf"(?<!\.)\b({'|'.join(given)})(_ptr)?\b"
    return re.sub(pattern, lambda found: new[found[1]] + (found[2] or ""), code)


BUGS = (
    "grid_too_small",
    "wrong_dtype",
    "returns_input",
    "not_launched",
    "wrong_signature",
    "undefined_name",
    "missing_import",
    "syntax_error",
)
"""The bugs of the corpus's wrong answers: a few kinds of :mod:`kernel_coder.tasks.generator.bugs`, each frequent.

The first four give wrong outputs, the next two fail when they are called, the last two do not compile. Each bug is at
one place of the answer and depends little on the prompt, so the rewards of any task teach the model to avoid them all.
"""


LIBRARY = 500
"""Number of pairs among which the example of a prompt is looked for; each prompt draws other ones. A library of
verified kernels has about this many after a run. So in training an example is about as similar to the module as the one
that ``evaluate --examples 1`` shows later."""


def mix(
    pairs: str | Path,
    target: Path,
    *,
    wrong: float = 0.45,
    talks: float = 0.06,
    tunings: float = 0.0,
    examples: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    exclude_families: Sequence[str] = (),
    plain_inputs: bool = False,
) -> dict[str, int]:
    """Writes the corpus of verified and wrong answers.

    Every pair gives its own answer. Answers with one planted bug of :data:`BUGS` are added until they are a share
    ``wrong`` of all answers; nothing in a prompt shows which kind its answer is. The number of conversations is
    ``talks`` times that of pairs: a wrong answer, the judge's feedback in the template ``nano``, and the right answer,
    the only one that is learnt. The number of conversations about a right answer is ``tunings`` times that of pairs:
    the learnt answer is the same kernel with another tile size or number of warps, the change that a search makes most
    often (:func:`kernel_coder.tasks.generator.tuning.retune`). The first prompts of a share ``examples`` of the pairs
    show the solution of a similar pair, which differs in more than names and constants; so a model learns to use the
    examples that ``evaluate --examples`` shows. The columns are ``prompt``, ``completion`` and ``bug``. Pairs of
    ``exclude_families`` are left out. With ``plain_inputs`` a module's inputs are called ``x``, ``y`` and ``z`` in the
    answers, by their position.

    Raises:
        ValueError: a share is out of its range, the target is a folder, there are no pairs, or none is of a family
            that is to be left out.
    """
    from pyarrow import Table, parquet

    if not (0 <= wrong < 1 and all(0 <= share <= 1 for share in (talks, tunings, examples))):
        raise ValueError(
            "--wrong must be at least 0 and below 1, --talks, --tunings and --examples between 0 and 1; "
            f"got {wrong}, {talks}, {tunings} and {examples}"
        )
    if target.is_dir():
        raise ValueError(f"--out must be a file to write; {target} is a folder")
    rows: list[dict[str, Any]] = []
    asked: list[tuple[Task, str, str]] = []
    tasks = load_tasks(str(pairs))
    if unknown := sorted(set(exclude_families) - {str(task.metadata.get("family")) for task in tasks}):
        raise ValueError(f"--exclude-families names {unknown[0]}, which no pair of {pairs} is of")
    wanted = [
        task for task in tasks if task.solution is not None and task.metadata.get("family") not in exclude_families
    ]
    shown = _similar_pairs(wanted, examples, seed, workers)
    answers = partial(_answers, wrong=wrong, talks=talks, tunings=tunings, seed=seed, inputs=plain_inputs)
    for made, talk in _mapped(answers, [(task, shown.get(task.id)) for task in wanted], workers):
        rows += made
        asked += talk
    if not rows:
        raise ValueError(f"{pairs} has no pairs")
    rows += _talks(asked, workers, plain_inputs)
    target.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(rows), target, compression="zstd")
    wrong_ones = sum(bool(row["bug"]) and len(row["prompt"]) == 1 for row in rows)
    second = sum(bool(row["bug"]) and len(row["prompt"]) > 1 for row in rows)
    tuned = sum(not row["bug"] and len(row["prompt"]) > 1 for row in rows)
    right = len(rows) - wrong_ones - second - tuned
    return {
        "right": right,
        "wrong": wrong_ones,
        "second turns": second,
        "tunings": tuned,
        "pairs with an example": len(shown),
    }


Answers = tuple[list[dict[str, Any]], list[tuple[Task, str, str]]]
"""Rows of first answers, and wrong answers for conversations, with their bugs."""


def _answers(
    pair: tuple[Task, Task | None], *, wrong: float, talks: float, tunings: float, seed: int, inputs: bool
) -> Answers:
    """Make the corpus's rows for one task. The second task of `pair`, if any, is the example in the prompt."""
    task, similar = pair
    rng, talk = Random(f"mix {seed} {task.id}"), Random(f"talk {seed} {task.id}")
    solved = [] if similar is None else [Example(similar.reference, plain_names(similar.solution or "", inputs=inputs))]
    prompt = build_messages(task, TEMPLATE, examples=solved)
    rows = [_row(prompt, plain_names(task.solution or "", inputs=inputs))]
    if rng.random() < wrong / (1 - wrong):
        rows.append(_row(prompt, *_with_bug(task, rng, inputs)))
    if (tuning := Random(f"tuning {seed} {task.id}")).random() < tunings:
        rows += _tuned(task, tuning, inputs)
    return rows, [(task, *_with_bug(task, talk, inputs))] if talk.random() < talks else []


def _mapped(work: Callable[[T], U], items: Sequence[T], workers: int | None) -> Iterator[U]:
    """Yield the results for the items, in order; many items are divided between processes."""
    if len(items) < MIN_PARALLEL_PAIRS or workers == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        yield from pool.map(work, items, chunksize=100)


def _structure(task: Task) -> tuple[str, npt.NDArray[np.uint64]]:
    """Return the fingerprint of a task's module, and the signature that similarities are estimated with."""
    return fingerprint(task.reference, class_name=task.entry_point), minhash(module_shingles(task))


def _similar_pairs(tasks: Sequence[Task], share: float, seed: int, workers: int | None) -> dict[str, Task]:
    """Draw a share of the tasks. Return, by task id, the most similar one of :data:`LIBRARY` other tasks."""
    drawn = [place for place, task in enumerate(tasks) if Random(f"example {seed} {task.id}").random() < share]
    if not drawn:
        return {}
    prints, signatures = zip(*_mapped(_structure, tasks, workers), strict=True)
    every, found = np.stack(signatures), {}
    for place in drawn:
        library = Random(f"library {seed} {tasks[place].id}").sample(range(len(tasks)), min(LIBRARY, len(tasks)))
        others = [other for other in library if prints[other] != prints[place]]
        if others:
            nearest = (every[others] == every[place]).mean(axis=1).argmax()
            found[tasks[place].id] = tasks[others[nearest]]
    return found


def _tuned(task: Task, rng: Random, plain_inputs: bool) -> list[dict[str, Any]]:
    """Make a conversation about a right answer, which in half of them is itself tuned; none if nothing can be tuned.

    The verdict has no times, because interpreted kernels have no speed.
    """
    from kernel_coder.judge import example_verdict
    from kernel_coder.judge.feedback import success

    shown = task.solution or ""
    if rng.random() < 0.5:
        shown = retune(shown, rng) or shown
    new = retune(shown, rng)
    if new is None:
        return []
    before, after = (plain_names(code, task.solution, inputs=plain_inputs) for code in (shown, new))
    said = build_feedback(task, example_verdict(feedback=success()), TEMPLATE, turn=1, max_turns=2)
    return [_row([*build_messages(task, TEMPLATE), _said(before), *said], after)]


def _with_bug(task: Task, rng: Random, plain_inputs: bool) -> tuple[str, str]:
    for kind in rng.sample(BUGS, len(BUGS)):
        with suppress(ValueError):  # no place for this one
            code, _ = plant_bug(task, rng, kind)
            return plain_names(code, task.solution, inputs=plain_inputs), kind
    raise ValueError(f"the solution of task {task.id} offers no place for any of {', '.join(BUGS)}")


def _row(prompt: Sequence[Message], code: str, bug: str = "") -> dict[str, Any]:
    return {"prompt": list(prompt), "completion": [_said(code)], "bug": bug}


def _said(code: str) -> Message:
    return Message(role="assistant", content=build_answer(code))


def _talks(asked: Sequence[tuple[Task, str, str]], workers: int | None, plain_inputs: bool) -> Iterator[dict[str, Any]]:
    """Make conversations about wrong answers, judged as in ``configs/nano.yaml``; there is none if the bug has no
    effect."""
    if not asked:
        return
    from kernel_coder.judge.config import JudgeConfig
    from kernel_coder.judge.supervisor.judge import Judge

    config = JudgeConfig(
        timing=False, checks=2, families=("own", "normal"), null_candidates=False, seed=0, workers=workers
    )
    with Judge("cpu", "triton", config=config) as judge:
        verdicts = judge.evaluate_many((task, code) for task, code, _ in asked)
        for (task, code, bug), verdict in zip(asked, verdicts, strict=True):
            if verdict.is_scored and not verdict.correct:
                said = build_feedback(task, verdict, TEMPLATE, turn=1, max_turns=2)
                prompt = [*build_messages(task, TEMPLATE), _said(code), *said]
                yield _row(prompt, plain_names(task.solution or "", inputs=plain_inputs), bug)


def add_mix(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pairs", help="parquet file of data build, or another source of pairs")
    add("--out", type=Path, required=True, metavar="FILE.parquet", help="file to write")
    add("--wrong", type=float, default=0.45, help="share of the answers that have a planted bug (default 0.45)")
    add("--talks", type=float, default=0.06, help="conversations with the judge for each pair (default 0.06)")
    add(
        "--tunings",
        type=float,
        default=0.0,
        help="conversations for each pair in which a right kernel gets another tile size or number of warps "
        "(default 0)",
    )
    add("--examples", type=float, default=0.0, help="share of the prompts that show a similar solved task (default 0)")
    add("--seed", type=int, default=0, help="seed of the bugs and of the answers that get one")
    add("--workers", type=int, help="candidates that are judged at once; default: one for each core, at most 12")
    add("--exclude-families", nargs="+", default=[], help="families to leave out")
    add(
        "--plain-inputs", action="store_true", help="answers call the inputs x, y and z, whatever the module calls them"
    )


def run_mix(options: argparse.Namespace) -> int:
    found = mix(
        options.pairs,
        options.out,
        wrong=options.wrong,
        talks=options.talks,
        tunings=options.tunings,
        examples=options.examples,
        seed=options.seed,
        workers=options.workers,
        exclude_families=options.exclude_families,
        plain_inputs=options.plain_inputs,
    )
    print(", ".join(f"{count:,} {name}" for name, count in found.items()))
    print(options.out)
    return 0
