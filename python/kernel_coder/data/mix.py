"""A corpus for a warm-up in which answers are right and wrong.

``kernel-coder data mix PAIRS --out FILE.parquet``. Code that is found is partly wrong, and a model that was
trained on it writes both; so does one that is warmed up on this, and reinforcement has something to choose from
(docs/sft.md). The same pairs and seed give the same file, but for the judge's words about memory that nothing was
written to.
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
from typing import Any

from kernel_coder.prompts import Message, build_answer, build_feedback, build_messages
from kernel_coder.tasks import Task, load_tasks
from kernel_coder.tasks.generator.bugs import plant_bug

MANY = 2000
"""Pairs from which on starting processes costs less than it saves."""

TEMPLATE = "nano"
"""Of prompts and of the judge's words."""

KERNEL = re.compile(r"^@triton\.jit\ndef (\w+)\(", re.MULTILINE)
FORWARD = re.compile(r"^class ModelNew\b.*?^    def forward\(self, ([^)]*)\):", re.MULTILINE | re.DOTALL)
INPUTS = ("x", "y", "z")
"""What a module's inputs are called in an answer with plain inputs, by their position."""


def plain_names(code: str, solution: str | None = None, *, inputs: bool = False) -> str:
    """Return the code with its one kernel called ``kernel``; with `inputs` also up to three inputs called ``x``, ``y``,
    ``z``.

    A kernel's name says nothing that its module does not, nor do its inputs' names, and a small model has to learn to
    repeat them. The names are looked up in `solution`, of which `code` may be a broken form (None: in `code`). Names
    stay where there are several kernels or none, or where a new name is taken.

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
"""What is wrong with the corpus's wrong answers: few kinds of :mod:`kernel_coder.tasks.generator.bugs`, each frequent.

The first four give wrong outputs, the next two fail when they are called, the last two do not compile. Each is a choice
at one place of an answer that has little to do with the prompt, so a reward on any task speaks about all of them.
"""


def mix(
    pairs: str | Path,
    target: Path,
    *,
    wrong: float = 0.45,
    talks: float = 0.06,
    seed: int = 0,
    workers: int | None = None,
    exclude_families: Sequence[str] = (),
    plain_inputs: bool = False,
) -> dict[str, int]:
    """Writes the corpus: verified answers and, as in code that is found, wrong ones.

    Every pair gives its own answer. Beside them stand as many answers with one planted bug of :data:`BUGS` as make
    ``wrong`` of all of these; nothing in a prompt says which kind its answer is. ``talks`` as many conversations as
    there are pairs: a wrong answer, what the judge says about it in the words of the feedback template ``nano``, and
    the right one, which alone is learnt. The columns are ``prompt``, ``completion`` and ``bug``. Pairs of
    ``exclude_families`` are left out. With ``plain_inputs`` the answers call a module's inputs ``x``, ``y`` and ``z``
    by their position, whatever the module calls them.

    Raises:
        ValueError: a share is out of its range, the target is a folder, there are no pairs, or none is of a family
            that is to be left out.
    """
    from pyarrow import Table, parquet

    if not (0 <= wrong < 1 and 0 <= talks <= 1):
        raise ValueError(f"--wrong must be at least 0 and below 1, --talks between 0 and 1; got {wrong} and {talks}")
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
    for made, talk in _mapped(
        partial(_answers, wrong=wrong, talks=talks, seed=seed, inputs=plain_inputs), wanted, workers
    ):
        rows += made
        asked += talk
    if not rows:
        raise ValueError(f"{pairs} has no pairs")
    rows += _talks(asked, workers, plain_inputs)
    target.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(rows), target, compression="zstd")
    wrong_ones = sum(bool(row["bug"]) and len(row["prompt"]) == 1 for row in rows)
    second = sum(len(row["prompt"]) > 1 for row in rows)
    return {"right": len(rows) - wrong_ones - second, "wrong": wrong_ones, "second turns": second}


Answers = tuple[list[dict[str, Any]], list[tuple[Task, str, str]]]
"""Rows of first answers, and wrong answers that are to be talked about, with their bugs."""


def _answers(task: Task, *, wrong: float, talks: float, seed: int, inputs: bool) -> Answers:
    """What the corpus has of one pair."""
    rng, talk = Random(f"mix {seed} {task.id}"), Random(f"talk {seed} {task.id}")
    prompt = build_messages(task, TEMPLATE)
    rows = [_row(prompt, plain_names(task.solution or "", inputs=inputs))]
    if rng.random() < wrong / (1 - wrong):
        rows.append(_row(prompt, *_with_bug(task, rng, inputs)))
    return rows, [(task, *_with_bug(task, talk, inputs))] if talk.random() < talks else []


def _mapped(answers: Callable[[Task], Answers], tasks: Sequence[Task], workers: int | None) -> Iterator[Answers]:
    """In order; many tasks are shared among processes."""
    if len(tasks) < MANY or workers == 1:
        yield from map(answers, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        yield from pool.map(answers, tasks, chunksize=100)


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
    """Conversations about wrong answers, judged as ``configs/nano.yaml`` judges; a bug that does no harm gives none."""
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
    add("--out", type=Path, required=True, metavar="FILE.parquet", help="what to write")
    add("--wrong", type=float, default=0.45, help="share of the answers that have a planted bug (default 0.45)")
    add("--talks", type=float, default=0.06, help="conversations for each pair; the judge is asked (default 0.06)")
    add("--seed", type=int, default=0, help="of the bugs, and of which answers get one")
    add("--workers", type=int, help="of the judge; default: one a core, at most 12")
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
        seed=options.seed,
        workers=options.workers,
        exclude_families=options.exclude_families,
        plain_inputs=options.plain_inputs,
    )
    print(", ".join(f"{count:,} {name}" for name, count in found.items()))
    print(options.out)
    return 0
