"""Measures steps that do not wait (`rollout.lag`), and the vLLM engine beside ours.

    python benchmarks/training/bench_lag.py simulated                # a judge of 1 s a verdict, an engine that sleeps
    python benchmarks/training/bench_lag.py engines --python VENV    # nano on the CPU: our engines beside vLLM
    python benchmarks/training/bench_lag.py gaps --python VENV       # log-probs after each of 20 updates
    python benchmarks/training/bench_lag.py steps --config configs/smollm2-135m.yaml --steps 8 \\
        -- --judge.device cuda:1                                     # seconds a step at lag 0 and lag 1

`simulated`: 16 answers a step, one written after the other in a quarter of a second each; a verdict takes 1 s, and 1,
2 or 4 are found at a time; an update takes 3 s. `step_s` is the median step, `longest_s` the longest of the three
stages. `engines`: tokens of answers by the time from prompts to ids and log-probs. `steps`: means over all steps but
the first two, since with a lag long and short steps alternate; a stage's time is that in which it worked on the answers
of any step, and `ratio` is the step by the longest stage; `held_out` is the share of right answers to held-out tasks,
if flags ask for it; `busy` is the mean of nvidia-smi's utilisation of each GPU, asked twice a second. VENV is an
interpreter that has vLLM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from kernel_coder.policy.config import PLAIN, ModelConfig
from kernel_coder.policy.model import load_policy
from kernel_coder.rollout import Conversation, Sampling, Turn, completion_seed, converse
from kernel_coder.rollout.copied_engine import LastUse
from kernel_coder.rollout.pipeline import Pipeline
from kernel_coder.rollout.static_engine import StaticEngine
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.rollout.vllm.engine import VllmEngine
from kernel_coder.rollout.vllm.probe import largest_gap, score_turns
from kernel_coder.run.errors import EXIT_STOPPED

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from side_by_side import Row, about_this_run, write

RESULTS = Path(__file__).parents[1] / "results"
PROMPT = "import torch\n\nclass Model(nn.Module):\n"
WARM = 2
"""Steps at the beginning that are not counted: they load, compile and fill the pipeline."""


class SimulatedEngine:
    """Writes answers one after another, each in the same time."""

    tells_of_ends = True

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
        ended: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn]:
        turns = []
        for place, prompt in enumerate(prompts):
            time.sleep(self.answer_s)
            turns.append(Turn(tuple(prompt), (1,), (0.0,), "x", "stop"))
            if ended is not None:
                ended(place, turns[-1])
        return turns


def simulated(
    *, workers: int, answers: int, answer_s: float, verdict_s: float, update_s: float, lag: int, steps: int = 5
) -> tuple[float, float]:
    """Median duration of a step, and of its longest stage, in seconds."""
    engine = SimulatedEngine(answer_s)
    with ThreadPoolExecutor(workers) as judge:

        def ask(task: Any, answer: str) -> Future[Any]:
            return judge.submit(time.sleep, verdict_s)

        def make(number: int, release: Callable[[], None], poll: Callable[[], None]) -> int:
            question: Any = SimpleNamespace(task=SimpleNamespace(id="t"), ids=(1,))
            question.messages = ({"role": "user", "content": "?"},)
            some = [Conversation(question, lambda turn: turn) for _ in range(answers)]
            converse(LastUse(engine, answers, release), some, Sampling(max_completion_length=1), ask=ask, poll=poll)
            return number

        marks: list[float] = []
        with Pipeline(make, depth=lag + 1) as pipeline:
            for step in range(steps + WARM):
                while pipeline.next <= min(step + lag, steps + WARM - 1):
                    pipeline.offer(pipeline.next, pipeline.next)
                pipeline.look(step)
                pipeline.drop(step)
                time.sleep(update_s)
                marks.append(time.perf_counter())
    durations = [after - before for before, after in itertools.pairwise(marks[WARM - 1 :])]
    return statistics.median(durations), max(answers * answer_s, answers * verdict_s / workers, update_s)


def simulated_rows(arguments: Namespace) -> Iterator[Row]:
    for workers, lag in itertools.product((1, 2, 4), (0, 1)):
        row: Row = {"workers": workers, "lag": lag, "answers": 16, "answer_s": 0.25, "verdict_s": 1.0, "update_s": 3.0}
        step_s, longest_s = simulated(**row, steps=3)
        yield {**row, "step_s": f"{step_s:.2f}", "longest_s": longest_s, "ratio": f"{step_s / longest_s:.3f}"}


def nano() -> Any:
    return load_policy(ModelConfig(name_or_path="nano", device="cpu", chat_template=PLAIN))


def vllm_engine(policy: Any, arguments: Namespace, folder: str) -> VllmEngine:
    config = VllmConfig(python=arguments.python, args=["--max-model-len", "2048"])
    return VllmEngine(policy.model, policy.tokenizer, config, log=Path(folder) / "vllm.log")


def engine_rows(arguments: Namespace) -> Iterator[Row]:
    policy = nano()
    sampling = Sampling(max_completion_length=256)
    prompts = [tuple(policy.tokenizer.encode(PROMPT))] * arguments.answers
    seeds = [completion_seed("answer", place) for place in range(arguments.answers)]

    def row(name: str, engine: Any) -> Row:
        times = []
        for _ in range(arguments.runs + 1):
            start = time.perf_counter()
            turns = engine.generate(prompts, sampling, seeds)
            times.append(time.perf_counter() - start)
        tokens = sum(len(turn.completion_ids) for turn in turns)
        seconds = statistics.median(times[1:])
        gap = largest_gap(turns, score_turns(policy.model, turns, sampling.temperature))
        found: Row = {"model": "nano", "engine": name, "answers": len(turns), "answer_tokens": tokens}
        return found | {
            "threads": torch.get_num_threads(),
            "seconds": f"{seconds:.3f}",
            "tokens_per_s": f"{tokens / seconds:.0f}",
            "largest_gap": f"{gap:.2g}",
        }

    yield row("static", StaticEngine(policy.model, policy.tokenizer))
    yield row("transformers", TransformersEngine(policy.model, policy.tokenizer))
    if arguments.python is not None:
        with tempfile.TemporaryDirectory() as folder, vllm_engine(policy, arguments, folder) as engine:
            start = time.perf_counter()
            engine.prepare(0)
            ready_s = time.perf_counter() - start
            yield row("vllm", engine) | {"start_s": f"{ready_s:.1f}"}


def gap_rows(arguments: Namespace) -> Iterator[Row]:
    for is_tied in (True, False):
        policy = nano()
        if not is_tied:
            policy.model.config.tie_word_embeddings = False
            policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.detach().clone())
        sampling = Sampling(max_completion_length=64)
        prompts = [tuple(policy.tokenizer.encode(PROMPT))] * 8
        generator = torch.Generator().manual_seed(0)
        with tempfile.TemporaryDirectory() as folder, vllm_engine(policy, arguments, folder) as engine:
            for version in range(20):
                with torch.no_grad():
                    for parameter in policy.model.parameters():
                        spread = parameter.std() if parameter.numel() > 1 else 0.0
                        parameter.add_(torch.randn(parameter.shape, generator=generator) * spread * 0.02)
                start = time.perf_counter()
                engine.prepare(version)
                load_s = time.perf_counter() - start
                turns = engine.generate(prompts, sampling, [completion_seed(version, k) for k in range(8)])
                gap = largest_gap(turns, score_turns(policy.model, turns, 1.0))
                yield {
                    "model": "nano",
                    "head": "tied" if is_tied else "untied",
                    "update": version,
                    "probe_gap": f"{engine.gap:.2g}",
                    "answers_gap": f"{gap:.2g}",
                    "load_and_probe_s": f"{load_s:.2f}",
                }


@contextmanager
def busy_gpus() -> Iterator[dict[int, list[float]]]:
    """The utilisation of each GPU, in percent, asked twice a second inside the block."""
    found: dict[int, list[float]] = {}
    end = threading.Event()

    def ask() -> None:
        command = ["nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits"]
        while not end.wait(0.5):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            for line in done.stdout.splitlines():
                index, share = line.split(",")
                found.setdefault(int(index), []).append(float(share))

    thread = threading.Thread(target=ask, daemon=True) if torch.cuda.is_available() else None
    if thread is not None:
        thread.start()
    try:
        yield found
    finally:
        end.set()
        if thread is not None:
            thread.join()


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """The time that these intervals cover together."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def step_rows(arguments: Namespace) -> Iterator[Row]:
    for lag in arguments.lags:
        with tempfile.TemporaryDirectory() as temporary, busy_gpus() as busy:
            folder = Path(arguments.folder or temporary) / f"lag-{lag}"
            flags = {"run.output_dir": folder, "run.max_steps": arguments.steps, "rollout.lag": lag}
            flags |= {"run.eval_on_start": "false", "run.eval_steps": "null"}
            given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
            command = [sys.executable, "-m", "kernel_coder.train", "--config", arguments.config]
            run = subprocess.Popen([*command, *given, *arguments.flags])
            try:
                run.wait(arguments.seconds)
            except subprocess.TimeoutExpired:
                run.terminate()  # the run saves itself, and the row has the steps that it did
                run.wait()
            if run.returncode not in (0, EXIT_STOPPED):
                raise SystemExit(f"the training ended with exit code {run.returncode}")
            lines = (folder / "metrics.jsonl").read_text().splitlines()
        every = [json.loads(line) for line in lines]
        steps = [one for one in every if "time/update_s" in one][WARM:]
        if not steps:
            raise SystemExit(f"no step after the first {WARM} has ended: use more --steps or --seconds")
        held_out = [one["eval/judge/correct"] for one in every if "eval/judge/correct" in one]

        def mean(*names: str, steps: list[dict[str, Any]] = steps) -> float:
            return statistics.fmean(sum(one.get(name) or 0.0 for name in names) for one in steps)

        def span(stage: str, steps: list[dict[str, Any]] = steps) -> float:
            marks = [(s[f"time/from/{stage}"], s[f"time/until/{stage}"]) for s in steps if f"time/from/{stage}" in s]
            return covered(marks) / len(steps)

        stages = {"writing_s": span("sample") or mean("time/rollout_s"), "judging_s": span("judge")}
        stages["updating_s"] = mean("time/update_s", "time/logprobs_s")
        step_s = mean("time/step_s")
        yield {
            "config": Path(arguments.config).stem,
            "flags": " ".join(arguments.flags),
            "lag": lag,
            "steps": len(steps),
            "step_s": f"{step_s:.2f}",
            **{name: f"{seconds:.2f}" for name, seconds in stages.items()},
            "ratio": f"{step_s / max(stages.values()):.3f}",
            "verdict_wait_share": f"{mean('time/verdict_wait_share'):.3f}",
            "staleness": f"{mean('sampling/staleness'):.1f}",
            "sampling_kl": f"{mean('sampling/kl'):.2g}",
            "held_out": " ".join(f"{share:.3f}" for share in held_out),
            "busy": " ".join(f"{index}:{statistics.fmean(shares):.0f}%" for index, shares in sorted(busy.items())),
        }


ROWS = {"simulated": simulated_rows, "engines": engine_rows, "gaps": gap_rows, "steps": step_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(ROWS), nargs="?", default="simulated")
    parser.add_argument("--python", help="interpreter that has vLLM")
    parser.add_argument("--answers", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--config", default="configs/smollm2-135m.yaml")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, help="end a run after so many seconds; its row has the steps so far")
    parser.add_argument("--folder", type=Path, help="folder for the runs of `steps`; default: a temporary one")
    parser.add_argument("--lags", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="commit in the rows, if there is no git")
    parser.add_argument("--out", type=Path, help="CSV file; default: results/lag_WHAT_DEVICE.csv")
    given = sys.argv[1:]
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    arguments = parser.parse_args(own)
    arguments.flags = flags
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    out = arguments.out or RESULTS / f"lag_{arguments.what}_{arguments.device}.csv"
    about, rows = about_this_run(arguments), list[Row]()
    for row in ROWS[arguments.what](arguments):
        print(*(f"{key}={value}" for key, value in row.items()), flush=True)
        rows.append({**row, **about})
        write(out, rows, last=tuple(about))


if __name__ == "__main__":
    main()
