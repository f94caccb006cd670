"""``kernel-coder data collect --out FILE.jsonl --count N [--config RECIPE] [--keep ...] [--field value ...]``

Records conversations of a model with the judge, with verdicts, rewards and log-probs. Extracts the answers to learn
into a file for ``kernel-coder sft``. Every field of a training recipe is a flag, as in ``kernel-coder train``.

Exit codes: 0: done. 2: a mistake (one sentence on stderr). 75: stopped by SIGTERM or SIGINT; the same command
continues.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from kernel_coder.library import Library
from kernel_coder.library.runs import add_run
from kernel_coder.ops import parse_response
from kernel_coder.policy.defaults import defaults_of
from kernel_coder.prompts import build_answer
from kernel_coder.rewards import RewardError
from kernel_coder.rollout import Rollout
from kernel_coder.run import distributed, launch
from kernel_coder.run.config import load
from kernel_coder.run.errors import EXIT_MISTAKE, EXIT_STOPPED, StopRequested, UsageError
from kernel_coder.run.extras import require_extra
from kernel_coder.run.flags import FlagParser, end
from kernel_coder.train.config import TrainConfig

KEEP = ("solved", "improved", "concise", "mended")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = FlagParser(
        prog="kernel-coder data collect",
        description="Records conversations with the judge and extracts the answers to learn.",
        epilog="Every field of a training recipe is a flag too, as in --rollout.max_turns 3.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl", help="file to write")
    parser.add_argument("--count", type=int, required=True, help="number of conversations")
    parser.add_argument("--config", help="recipe, as for kernel-coder train")
    parser.add_argument(
        "--keep",
        nargs="+",
        choices=KEEP,
        default=["solved"],
        help="answers for FILE.sft.jsonl. solved: the first correct answer of a conversation; improved: every answer "
        "better than all before it; concise: of the solved answers to a task, the one with the shortest reasoning; "
        "mended: the task's known solution as the reply to feedback on a wrong answer",
    )
    parser.add_argument("--library", type=Path, metavar="FILE", help="add the correct kernels to this library")
    parser.add_argument("--nproc", type=int, help="processes, one for each GPU, that share the work (default 1)")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        own, flags = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
        config = load(TrainConfig, own.config, flags, below=of_the_model)
        if own.count < 1:
            raise UsageError(f"--count must be at least 1; got {own.count}")
        if config.judge is None:
            raise UsageError(
                "collect needs a judge: add the section judge to the config, or the flag --judge.device cpu"
            )
        require_extra("train", "kernel-coder data collect")
        count, others = launch.nproc_of(given)
        if (code := launch.launched("kernel_coder.data.collect", others, count)) is not None:
            return code
        with distributed.joined(config.parallel.timeout_s) as world:
            learnable = collect(config, own.out, own.count, own.keep)
            if not world.is_first:
                return 0
        if own.library is not None:
            with Library(own.library) as library:
                added, correct = add_run(library, own.out)
            print(f"{correct} correct kernels, {added} of them new in {own.library}")
    except (UsageError, RewardError) as error:
        return end(error, EXIT_MISTAKE)
    except StopRequested as error:
        return end(f"stopped by {error}; the same command continues", EXIT_STOPPED)
    print(f"next: kernel-coder sft --data.path {learnable} --model.name_or_path {config.model.name_or_path}")
    return 0


def of_the_model(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe for which its model has its own defaults.

    >>> of_the_model({"model": {"name_or_path": "nano"}})["rollout"]["max_completion_length"]
    384
    """
    found = defaults_of(str((given.get("model") or {}).get("name_or_path", "")))
    context = {"context": "last", "context_turns": found["context_turns"]} if "context_turns" in found else {}
    names = {
        "data": {"prompt_template": "prompt_template", "path": "tasks", "one_shot": "one_shot"},
        "rollout": {
            "max_completion_length": "max_new_tokens",
            "feedback_template": "feedback_template",
            "earlier_reasoning": "earlier_reasoning",
        },
    }
    values = {
        section: {field: found[name] for field, name in fields.items() if name in found}
        for section, fields in names.items()
    }
    return {**values, "rollout": {**values["rollout"], **context}}


def collect(config: TrainConfig, out: Path, count: int, keep: Sequence[str]) -> Path:
    """Records the conversations that ``out`` lacks and extracts the answers to learn. Returns the file of these
    answers."""
    import torch
    from rich.console import Console

    from kernel_coder.run.rng import seed_rng
    from kernel_coder.run.signals import listening
    from kernel_coder.train.curriculum import draw_epochs
    from kernel_coder.train.rollouts import RolloutRequest
    from kernel_coder.train.setup import prepare

    first = distributed.world().is_first
    console = Console(quiet=not first)
    there = distributed.from_first(lambda: open_file(config, out))
    # Nothing is trained, so every rank needs whole weights and nothing else.
    config = config.model_copy(update={"parallel": config.parallel.model_copy(update={"shard": False})})
    group, tasks = config.rollout.num_generations, config.tasks_per_step
    if config.run.num_threads is not None:
        torch.set_num_threads(config.run.num_threads)
    seed_rng(config.run.seed)
    run = prepare(config, None)
    for note in run.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    with listening() as stop, run.judge:
        while there < count:
            stop.poll()
            step = there // (tasks * group)
            places = draw_epochs(len(run.train), step * tasks, tasks, config.run.seed, config.data.shuffle)
            prompts = [run.train[place] for place in places]
            seed = (config.run.seed, "collect", step)
            request = RolloutRequest(prompts=prompts, group=group, sampling=run.sampling, seed=seed, step=step)
            answers = run.worker.answer(request, stop.poll)
            bounds, table = answers.bounds, answers.table
            lines = [
                orjson.dumps(
                    describe(there + i, rollout, table.total[bounds[i] : bounds[i + 1]]),
                    option=orjson.OPT_APPEND_NEWLINE,
                )
                for i, rollout in enumerate(answers.rollouts)
            ]
            if first:
                with out.open("ab") as file:  # open_file drops a step that is not complete
                    file.write(b"".join(lines))
            there += len(lines)
            solved = sum(any(verdict.correct for verdict in rollout.verdicts) for rollout in answers.rollouts)
            console.print(f"{there}/{count} conversations; solved {solved} of the last {len(lines)}")
    learnable = out.with_suffix(".sft.jsonl")
    if not first:
        return learnable
    solutions = {prompt.task.id: prompt.task.solution for prompt in run.train if prompt.task.solution}
    rows = list(rows_to_learn(read(out), keep, solutions))
    part = learnable.with_suffix(".part")
    part.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    part.replace(learnable)
    console.print(f"{len(rows)} answers to learn ({', '.join(keep)})")
    return learnable


def open_file(config: TrainConfig, out: Path) -> int:
    """Return the number of conversations in the file, after dropping an incomplete step at its end.

    Raises:
        UsageError: the file was made with another recipe.
    """
    left_out: Any = {"run": {"output_dir", "max_steps", "save_steps"}, "optim": True, "parallel": True}
    recipe = config.model_dump(mode="json", exclude=left_out)
    recipe["batch"] = config.generation_batch_size
    beside = out.with_suffix(".recipe.yaml")
    text = yaml.safe_dump(recipe, sort_keys=False)
    if out.exists() and beside.exists() and beside.read_text(encoding="utf-8") != text:
        raise UsageError(f"{out} holds conversations from another recipe ({beside.name}); use another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(text, encoding="utf-8")
    if not out.exists():
        return 0
    whole = [line for line in out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    kept = whole[: len(whole) // config.generation_batch_size * config.generation_batch_size]
    if len(kept) < len(whole) or out.stat().st_size > sum(map(len, whole)):
        out.write_bytes(b"".join(kept))
    return len(kept)


def describe(number: int, rollout: Rollout, rewards: Sequence[float | None]) -> dict[str, Any]:
    """Return a line of the file: a conversation with its verdicts, rewards and log-probs."""
    turns = []
    for k, turn in enumerate(rollout.turns):
        shown = list(rollout.shown[k])
        turns.append(
            {
                "prompt": shown[:-1] if shown[-1]["role"] == "assistant" else shown,
                "completion": rollout.answers[k],
                "finish_reason": turn.finish_reason,
                "prompt_ids": turn.prompt_ids,
                "completion_ids": turn.completion_ids,
                "logprobs": turn.logprobs,
                "reward": rewards[k],
                "verdict": orjson.Fragment(rollout.verdicts[k].to_json()),
            }
        )
    return {"conversation": number, "task": rollout.task.id, "turns": turns}


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the conversations of a file."""
    with path.open("rb") as lines:
        for line in lines:
            yield json.loads(line)  # not orjson, which would round seeds of more than 64 bits


def rows_to_learn(
    conversations: Iterator[dict[str, Any]], keep: Sequence[str], solutions: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows with ``prompt`` (the conversation so far) and ``completion`` (the answer to learn), in TRL's
    format.

    Only answers in the form of the format reward count, each text once for each task. ``solutions`` maps task ids to
    known solutions; ``mended`` uses them as replies to the feedback on wrong answers.
    """
    from kernel_coder.judge import Verdict
    from kernel_coder.judge.verdict import rank

    solutions = solutions or {} if "mended" in keep else {}
    seen: set[tuple[str, str]] = set()
    used: set[str] = set()  # prompts that have a row with a known solution
    shortest: dict[str, tuple[int, dict[str, Any]]] = {}
    for conversation in conversations:
        best, is_solved, was_wrong = None, False, False
        for k, turn in enumerate(conversation["turns"]):
            verdict = Verdict.from_json(json.dumps(turn["verdict"]))
            here, task = rank(verdict), conversation["task"]
            is_better = k > 0 and best is not None and here > best and verdict.is_scored
            is_first = verdict.correct and not is_solved
            best, is_solved = here if best is None else max(best, here), is_solved or verdict.correct
            if was_wrong and task in solutions and (prompt := str(turn["prompt"])) not in used:
                used.add(prompt)
                known = {"prompt": turn["prompt"], "completion": build_answer(solutions[task])}
                yield {**known, "task": task, "turn": k + 1, "outcome": None, "reward": None}
            was_wrong = verdict.is_scored and not verdict.correct
            response = parse_response(turn["completion"])
            if not response.ok or (task, turn["completion"]) in seen:
                continue
            row = {name: turn[name] for name in ("prompt", "completion")}
            row |= {"task": task, "turn": k + 1, "outcome": verdict.outcome.value, "reward": turn["reward"]}
            if ("solved" in keep and is_first) or ("improved" in keep and is_better):
                seen.add((task, turn["completion"]))
                yield row
            elif "concise" in keep and is_first:
                length = len(response.thinking or "")
                if task not in shortest or length < shortest[task][0]:
                    shortest[task] = length, row
    yield from (row for _, row in shortest.values())


if __name__ == "__main__":
    distributed.end_process(main())
