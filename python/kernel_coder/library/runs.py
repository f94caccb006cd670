"""Reads the correct answers from the folder of a run of ``train``, ``refine``, ``evaluate`` or ``data collect``.

This package may not import these commands, so it reads their files directly as JSON lines and a config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kernel_coder.judge.verdict import Verdict
from kernel_coder.library.store import Library
from kernel_coder.ops import parse_response
from kernel_coder.run.errors import UsageError
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task, load_tasks


@dataclass(frozen=True, slots=True)
class Found:
    """A correct answer of a run. ``task`` is the id of its task."""

    task: str
    source: str
    verdict: Verdict
    parents: tuple[str, ...] = ()  # SHA-256 of the sources that the answer was derived from


def add_run(library: Library, run: Path, tasks: str | None = None) -> tuple[int, int]:
    """Adds the correct kernels of a run to the library.

    Args:
        library: the library.
        run: the folder of a run, or the file of ``data collect``.
        tasks: the task set of the run; None: the one that its config names.

    Returns:
        The number of kernels that were new, and the number of correct answers.

    Raises:
        UsageError: the run or its tasks cannot be read.
    """
    config = _config(run)
    by_id = {task.id: task for task in _tasks(run, config, tasks)}
    added = correct = 0
    for found in correct_answers(run):
        if (task := by_id.get(found.task)) is None:
            raise UsageError(f"{run} holds an answer to task {found.task}, which is not in its tasks; pass --tasks")
        precision = config.get("precision") or task.precision
        correct += 1
        task = replace(task, backend=found.verdict.backend, precision=precision)
        added += library.add(task, found.source, found.verdict, origin=str(run), parents=found.parents)
    return added, correct


def correct_answers(run: Path) -> Iterator[Found]:
    """Yield the correct answers in the files of a run."""
    if run.is_file():
        yield from _of_collect(run)
    elif (run / "trajectory.jsonl").exists():
        yield from _of_refine(run / "trajectory.jsonl")
    elif (run / "verdicts.jsonl").exists():
        for folder in (run, *sorted(run.glob("turn_*"))):
            yield from _of_evaluate(folder)
    elif (run / "samples.jsonl").exists():
        yield from _of_train(run / "samples.jsonl")
    else:
        raise UsageError(f"{run} is not the folder of a run of train, refine or evaluate, nor a file of data collect")


def _config(run: Path) -> Mapping[str, Any]:
    """Return the config in the folder of the answers; empty if there is none."""
    paths = [run.with_suffix(".recipe.yaml")] if run.is_file() else [run / "config.yaml", run / "config.json"]
    for path in paths:
        if path.exists():
            return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return {}


def _tasks(run: Path, config: Mapping[str, Any], tasks: str | None) -> Iterator[Task]:
    data = config.get("data") or {}
    paths = [tasks] if tasks else [data.get("path") or config.get("module") or config.get("tasks")]
    if tasks is None and (config.get("eval") or {}).get("path"):
        paths.append(config["eval"]["path"])
    given = {name: data[name] for name in ("format", "revision", "split") if data.get(name)} if not tasks else {}
    if config.get("kernelbench_dir"):
        given["kernelbench_dir"] = config["kernelbench_dir"]
    for path in paths:
        if path is None:
            raise UsageError(f"{run} has no config that names its tasks; pass --tasks")
        try:
            yield from load_tasks(path, **given)
        except (ValueError, OSError, ImportError) as error:
            raise UsageError(f"the tasks of {run} cannot be loaded ({error}); pass --tasks") from None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; an incomplete last line, which a crash leaves, is skipped."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)  # not orjson, which would round seeds of more than 64 bits


def _verdict(record: Any) -> Verdict | None:
    """Return the verdict, if it is a correct one."""
    if not record or record.get("outcome") != "correct":
        return None
    return Verdict.from_json(json.dumps(record))


def _of_refine(path: Path) -> Iterator[Found]:
    answers: dict[tuple[int, int], dict[str, Any]] = {}
    for record in _lines(path):
        key = record["turn"], record["sample"]
        if record["kind"] == "answer":
            answers[key] = record
        elif (verdict := _verdict(record["verdict"])) is not None:
            answer = answers[key]
            sources = (answers[parent[0], parent[1]]["code"] for parent in answer.get("parents", ()))
            parents = tuple(sha256_text(source) for source in sources if source)
            yield Found(verdict.task, answer["code"], verdict, parents)


def _of_evaluate(folder: Path) -> Iterator[Found]:
    if not (folder / "verdicts.jsonl").exists():
        return
    codes = {(one["task"], one["sample"]): one["code"] for one in _lines(folder / "samples.jsonl")}
    for record in _lines(folder / "verdicts.jsonl"):
        code = codes.get((record["task"], record["sample"]))
        if code and (verdict := _verdict(record["verdict"])) is not None:
            yield Found(record["task"], code, verdict)


def _of_train(path: Path) -> Iterator[Found]:
    for line in _lines(path):
        yield from _answers(line["task"], line.get("turns") or [line])


def _of_collect(path: Path) -> Iterator[Found]:
    for line in _lines(path):
        yield from _answers(line["task"], line["turns"])


def _answers(task: str, turns: list[dict[str, Any]]) -> Iterator[Found]:
    for turn in turns:
        verdict = _verdict(turn.get("verdict"))
        code = parse_response(turn["completion"]).code if verdict is not None else None
        if verdict is not None and code:
            yield Found(task, code, verdict)
