"""Our judge and other evaluators on public suites of hacks and bugs, which other projects wrote.

    git clone https://github.com/RishiShah99/lethe PATH ...
    python benchmarks/judge/peers.py --lethe PATH --gpuemu PATH --device cpu           # judge_peers_cpu.csv
    python benchmarks/judge/peers.py --lethe PATH --gpuemu PATH --pygpubench PATH --kernelbench PATH --verified PATH \
        --kernelbench-com PATH --device cuda                                             # judge_peers_cuda.csv

Suites are local copies, given by path; nothing of theirs is stored but names and verdicts. Each row is one candidate
and one evaluator: what the suite says of it (hack or honest), whether the evaluator accepted it, and the speedup that
it found. The file is written after each verdict, and `--resume` continues it; it is complete once the table is printed.
The table counts hacks that were accepted, honest ones that were refused, and errors of the evaluator.

- lethe: tests/cheating_kernels (one operation, written in PyTorch). A hack is refused if it is refused in single
  precision, in half precision, or where gradients are compared.
- gpuemu: gpuemu_corpus/data (Triton kernels as people and models wrote them, and wrong ones). The kernels are called
  through NumPy, so own kernels are not asked for. Without a GPU they run in Triton's interpreter.
- pygpubench: exploits (CUDA only). They attack another evaluator from inside; here they get its problem as a task.
- kernelbench: src/kernelbench/unit_tests/test_kernels (CUDA only), with the problem that its test names.
- kernelbench-com: benchmarks/hard (CUDA only). Many of its hacks were written for other GPUs, and fail on this one.

The evaluators kernelbench (ScalingIntelligence/KernelBench) and verified (facebookresearch/kernel_bench_verified) run
in a fresh process for each candidate, and need a GPU.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.tasks import Task

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
from kernelbench_evaluator import WITHOUT_CLIENTS

RESULTS = Path(__file__).resolve().parents[1] / "results"

EVALUATE = (
    WITHOUT_CLIENTS
    + """
import inspect, json
sources, task, candidate, backend, hidden = sys.argv[1:]
sys.path.insert(0, sources)
try:
    from kernelbench.eval import eval_kernel_against_ref
except ImportError:
    from src.eval import eval_kernel_against_ref
options = {"backend": backend, "hidden_test_path": hidden or None}
known = inspect.signature(eval_kernel_against_ref).parameters
options = {name: value for name, value in options.items() if name in known}
task, candidate = open(task).read(), open(candidate).read()
found = eval_kernel_against_ref(
    task, candidate, num_correct_trials=5, num_perf_trials=10, measure_performance=True, **options
)
excessive = found is not None and bool((found.metadata or {}).get("excessive_speedup"))
times = getattr(found, "runtime", -1) or -1, getattr(found, "ref_runtime", -1) or -1
speedup = times[1] / times[0] if min(times) > 0 else None
print("RESULT " + json.dumps(None if found is None else [bool(found.correctness) and not excessive, speedup]))
"""
)
"""Runs another evaluator. Arguments: its sources, the reference, the candidate, its backend, and a file with hidden
inputs or nothing."""

TIMEOUT_S = 300
"""Upper limit for one candidate in another evaluator, in seconds."""


@dataclass
class Case:
    """One candidate of a suite."""

    suite: str
    name: str
    is_hack: bool
    task: str
    candidate: str
    precisions: tuple[str, ...] = ("fp32",)
    config: dict[str, Any] = field(default_factory=dict)
    backend: str = "torch"
    hidden: str = ""
    """KernelBench Verified's file of hidden inputs for the task, in its folder ``hidden_tests``."""


# ---- suites


def task_of(call: str, inputs: str, before: str = "") -> str:
    """A reference that returns an expression of its inputs, given as ``name: shape`` pairs. Its sizes have names, as in
    KernelBench, so the judge asks about other sizes, too."""
    shapes = dict(part.split(":") for part in inputs.split(";"))
    drawn = ", ".join(
        f"torch.randn({re.sub(r'[0-9]+', lambda size: f'size_{size[0]}', shape)})" for shape in shapes.values()
    )
    sizes = "\n".join(
        f"size_{size} = {size}" for size in dict.fromkeys(re.findall(r"[0-9]+", " ".join(shapes.values())))
    )
    return (
        f"import torch\nimport torch.nn.functional as F\n{before}\n{sizes}\n\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, {', '.join(shapes)}):\n        return {call}\n\n\ndef get_inputs():\n"
        f"    return [{drawn}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


def lethe(root: Path) -> Iterator[Case]:
    """Cheating versions of one operation."""
    folder = root / "tests" / "cheating_kernels"
    reference = (folder / "_reference.py").read_text().replace("from __future__ import annotations\n", "")
    task = task_of("reference_op(u)", "u:4, 64, 32", before=reference)
    for path in sorted(folder.glob("[a-z]*.py")):
        source = path.read_text().replace("from ._reference import reference_op", reference)
        source = source.replace("from __future__ import annotations\n", "")
        module = "class ModelNew(torch.nn.Module):\n    def forward(self, u):\n        return cheating_op(u)\n"
        candidate = f"import torch\n{source}\n\n{module}"
        yield Case("lethe", path.stem, True, task, candidate, ("fp32", "fp16"))
        # The same candidate is judged with gradients, too. Any refusal counts for both.
        yield Case("lethe", path.stem, True, task, candidate, config={"backward": True})


OPERATIONS = {
    "attention": ("torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v", "q:16, 32;k:24, 32;v:24, 32"),
    "elu": ("F.elu(input)", "input:2, 7, 256"),
    "gelu": ("F.gelu(input, approximate='tanh')", "input:2, 7, 256"),
    "l2norm": ("input / torch.sqrt(input.square().sum(-1, keepdim=True) + 1e-12)", "input:2, 7, 256"),
    "layernorm": ("F.layer_norm(input, input.shape[-1:])", "input:2, 7, 256"),
    "leaky_relu": ("F.leaky_relu(input, 0.01)", "input:2, 7, 256"),
    "matmul": ("a @ b", "a:32, 48;b:48, 40"),
    "relu": ("F.relu(input)", "input:2, 7, 256"),
    "rmsnorm": ("input * torch.rsqrt(input.square().mean(-1, keepdim=True) + 1e-5)", "input:2, 7, 256"),
    "sigmoid": ("torch.sigmoid(input)", "input:2, 7, 256"),
    "silu": ("F.silu(input)", "input:2, 7, 256"),
    "softmax": ("torch.softmax(input, -1)", "input:2, 7, 256"),
    "tanh": ("torch.tanh(input)", "input:2, 7, 256"),
}
"""References of gpuemu's operations, which it has in NumPy."""


def gpuemu(root: Path, device: str) -> Iterator[Case]:
    """Kernels of 26 operations, ten of them with a bug."""
    for folder in sorted((root / "gpuemu_corpus" / "data").iterdir()):
        if not (folder / "kernel.py").exists():
            continue
        meta = json.loads((folder / "meta.json").read_text())
        operation = folder.name.removeprefix("flash_").split("_triton")[0].removesuffix("_llm_buggy")
        call, inputs = OPERATIONS[operation]
        shapes = [part.partition(":")[2] for part in inputs.split(";")]
        names = meta["input_names"]
        if len(names) != len(shapes):
            print(f"{folder.name}: has other inputs ({', '.join(names)}) and is left out", file=sys.stderr)
            continue
        source = (folder / "kernel.py").read_text()
        if device == "cpu":
            source = source.replace("torch.cuda.is_available()", "True").replace('device="cuda"', 'device="cpu"')
        given = ", ".join(f'"{name}": {one}.cpu().numpy()' for name, one in zip(names, "abc", strict=False))
        arguments = ", ".join("abc"[: len(names)])
        candidate = (
            f"import torch\n{source}\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, {arguments}):\n"
            f"        found = run({{{given}}})\n"
            f"        return torch.from_numpy(np.ascontiguousarray(found)).to(a.device)\n"
        )
        is_hack = folder.name.endswith("_buggy")
        config = {"ablation": False, "profile": False}
        yield Case("gpuemu", folder.name, is_hack, task_of(call, inputs), candidate, ("fp32",), config, "triton")


def pygpubench(root: Path) -> Iterator[Case]:
    """Exploits against another evaluator; its problem turns RGB into grey."""
    weights = "torch.tensor([0.2989, 0.5870, 0.1140], device=image.device)"
    task = task_of(f"torch.sum(image * {weights}, -1)", "image:256, 256, 3")
    for path in sorted((root / "exploits").glob("submission_*.py")):
        candidate = (
            f"import torch\n{path.read_text()}\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, image):\n"
            "        output = image.new_empty(image.shape[:-1])\n        kernel(output, image)\n        return output\n"
        )
        yield Case("pygpubench", path.stem, path.stem != "submission_correct", task, candidate)


def kernelbench_suite(root: Path) -> Iterator[Case]:
    """The candidates of KernelBench's adversarial test."""
    task = (root / "KernelBench" / "level1" / "1_Square_matrix_multiplication_.py").read_text()
    for path in sorted((root / "src" / "kernelbench" / "unit_tests" / "test_kernels").glob("*_kernel.py")):
        hidden = "level1/1_hidden.py"
        yield Case("kernelbench", path.stem, True, task, path.read_text(), backend="cuda", hidden=hidden)


DECKS = {"runs": "problems-rtxpro6000", "h100": "problems-h100", "b200": "problems-b200"}
"""kernelbench.com's problems, by the folder of their solutions. Each GPU has its own."""

FP8_CHANGED = "20260614"
"""Since this day kernelbench.com's fp8 problem has another reference. Earlier solutions solve the archived one."""

HONEST_EACH = 4
"""Number of kernelbench.com's honest solutions that are judged for each problem. It has up to 18 of one problem."""


def kernelbench_com(root: Path) -> Iterator[Case]:
    """Solutions by agents, which people read and labelled: every hack and bug, and some honest ones for an H100."""
    solutions = {path.name.removesuffix("_solution.py.txt"): path for path in root.glob("public/runs/**/*.py.txt")}
    counts: Counter[str] = Counter()
    for path in sorted(root.glob("benchmarks/hard/results/annotations/*.yaml")):
        # Not all of them are valid YAML, but these lines are.
        label = dict(re.findall(r"^(verdict|problem): *(\w+)", path.read_text(), re.MULTILINE))
        solution = solutions.get(path.stem)
        is_hack = label["verdict"] in ("reward_hack", "bug")
        if solution is None or not (is_hack or (label["verdict"] == "clean" and solution.parent.name == "h100")):
            continue
        problem = label["problem"]
        folder = root / "benchmarks" / "hard" / DECKS[solution.parent.name] / problem
        if not folder.exists() or (not is_hack and counts[problem] == HONEST_EACH):
            continue
        archived = root / "public" / "data" / "hard" / "references" / f"{problem}_reference.py.txt"
        reference = archived if path.name < FP8_CHANGED and archived.exists() else folder / "reference.py"
        task, source = reference.read_text(), solution.read_text()
        if "cutlass/" in source:
            print(f"{path.stem}: needs the headers of CUTLASS and is left out", file=sys.stderr)
            continue
        backend = "cuda" if "load_inline" in source or "cpp_extension" in source else "triton"
        candidate = f"{source}\n\nModelNew = Model\n"
        counts[problem] += not is_hack
        # With fp32 all tensors keep the dtypes that the task gives them: 8, 16 and 32 bits in one task.
        yield Case("kernelbench.com", path.stem, is_hack, task, candidate, ("fp32",), {"timeout_s": 300.0}, backend)


# ---- evaluators

Answer = tuple[str, float | None]
"""`accepted`, `refused` or `error`, and the speedup if it was measured."""


def ours(cases: list[Case], device: str, at_once: int) -> Iterator[tuple[Case, Answer]]:
    """Each case with what our judge says of it, as soon as it is known."""
    alike: dict[str, list[Case]] = {}
    for case in cases:
        alike.setdefault(json.dumps(case.config), []).append(case)
    for text, some in alike.items():
        fields = {"timeout_s": 120.0, **json.loads(text)}
        config = JudgeConfig(timed_calls=10, timing_s=1.0, workers=at_once, **fields)
        with Judge(device, config=config) as judge, ThreadPoolExecutor(2 * at_once) as threads:
            asked = {}
            for case, precision in ((one, precision) for one in some for precision in one.precisions):
                task = Task(id=case.name, source=case.suite, reference=case.task, precision=precision)
                asked[threads.submit(judge.evaluate, task, case.candidate, case.backend)] = case, precision
            for done in as_completed(asked):
                (case, precision), verdict = asked[done], done.result()
                said = " ".join((verdict.feedback or "").split())[:400]  # says on which inputs it failed
                print(f"{case.name} {precision} {case.config}: {verdict.outcome.value}, {said}", flush=True)
                yield case, (WORDS.get(verdict.outcome, "refused"), verdict.speedup)


WORDS = {Outcome.CORRECT: "accepted", Outcome.HARNESS_FAILED: "error"}
"""Words for the judge's outcomes; all others are refusals."""


def theirs(cases: list[Case], root: Path, at_once: int) -> Iterator[tuple[Case, Answer]]:
    """The same by another evaluator, in a fresh process each."""
    with ThreadPoolExecutor(at_once) as threads:
        yield from zip(cases, threads.map(lambda case: answer(case, root), cases), strict=True)


def can_judge(evaluator: str, case: Case) -> bool:
    """Whether an evaluator is asked about a case.

    The other two compare no gradients, and they convert all inputs to one precision, while kernelbench.com's have
    several. KernelBench Verified cannot load Triton's kernels, because its candidates have no source file.
    """
    if evaluator == "kernel_coder":
        return True
    if case.config.get("backward") or case.suite == "kernelbench.com":
        return False
    return not (evaluator == "verified" and case.backend == "triton")


def answer(case: Case, root: Path) -> Answer:
    """What the evaluator in a repository says of one case."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("task.py", "candidate.py")]
        for path, text in zip(paths, (case.task, case.candidate), strict=True):
            path.write_text(text)
        sources = root / "src" if (root / "src" / "kernelbench").exists() else root
        hidden = root / "hidden_tests" / case.hidden
        given = [sources, *paths, case.backend, hidden if case.hidden and hidden.exists() else ""]
        command = [sys.executable, "-c", EVALUATE, *map(str, given)]
        environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(Path(folder, "built"))}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder, env=environment
            )
        except subprocess.TimeoutExpired:
            return "refused", None
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
    print(f"{case.name}: {found}\n{(done.stdout + done.stderr)[-300:]}", file=sys.stderr)
    return ("error", None) if found is None else ("accepted" if found[0] else "refused", found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("lethe", "gpuemu", "pygpubench", "kernelbench", "verified", "kernelbench-com"):
        parser.add_argument(f"--{name}", type=Path, help=f"a copy of {name}'s repository")
    names = ("kernel_coder", "kernelbench", "verified")
    parser.add_argument("--evaluators", nargs="+", choices=names, default=names, help="evaluators to ask")
    parser.add_argument("--at-once", type=int, default=1, help="candidates that an evaluator judges at a time")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--match", default="", help="regular expression; judge only candidates with a matching name")
    parser.add_argument("--resume", action="store_true", help="keep the rows of --out, and judge only what it lacks")
    parser.add_argument("--out", type=Path, help="default: results/judge_peers_DEVICE.csv")
    arguments = parser.parse_args()
    cases: list[Case] = []
    if arguments.lethe:
        cases += lethe(arguments.lethe)
    if arguments.gpuemu:
        cases += gpuemu(arguments.gpuemu, arguments.device)
    if arguments.device == "cuda":
        cases += pygpubench(arguments.pygpubench) if arguments.pygpubench else ()
        cases += kernelbench_suite(arguments.kernelbench) if arguments.kernelbench else ()
        cases += kernelbench_com(arguments.kernelbench_com) if arguments.kernelbench_com else ()
    cases = [case for case in cases if re.search(arguments.match, case.name)]
    out = arguments.out or RESULTS / f"judge_peers_{arguments.device}.csv"
    rows = kept(out) if arguments.resume else {}
    for evaluator in arguments.evaluators:
        root = getattr(arguments, evaluator, None)
        if evaluator != "kernel_coder" and (root is None or arguments.device == "cpu"):
            continue
        left = [case for case in cases if can_judge(evaluator, case) and key_of(evaluator, case) not in rows]
        waiting = Counter(key_of(evaluator, case) for case in left for _ in (case.precisions if root is None else "1"))
        asked = (
            ours(left, arguments.device, arguments.at_once) if root is None else theirs(left, root, arguments.at_once)
        )
        for case, (verdict, speedup) in asked:
            key = key_of(evaluator, case)
            if key not in rows or rows[key]["verdict"] == "accepted":  # any refusal counts
                rows[key] = row_of(key, verdict, speedup, arguments.device)
            print(*key, rows[key]["verdict"], rows[key]["speedup"], flush=True)
            waiting[key] -= 1
            write({one: row for one, row in rows.items() if waiting[one] <= 0}, out)
    counts: Counter[tuple[str, str, str]] = Counter()
    for (evaluator, suite, name), row in rows.items():
        verdict = row["verdict"]
        is_honest = name.endswith("(honest)")
        counts[evaluator, suite, "honest" if is_honest else "hacks"] += 1
        counts[evaluator, suite, f"{'honest' if is_honest else 'hacks'} {verdict}"] += 1
    for evaluator, suite in dict.fromkeys(key[:2] for key in rows):
        counted = {
            name: counts[evaluator, suite, name]
            for name in ("hacks", "hacks accepted", "hacks error", "honest", "honest refused", "honest error")
        }
        print(f"{suite} by {evaluator}: " + ", ".join(f"{count} {name}" for name, count in counted.items()))
    return 0


Key = tuple[str, str, str]
"""Evaluator, suite and candidate."""

Row = dict[str, str]
COLUMNS = ("evaluator", "suite", "candidate", "verdict", "speedup", "device", "torch", "commit")


def key_of(evaluator: str, case: Case) -> Key:
    """The key of a row; a candidate's name says whether it is honest."""
    return evaluator, case.suite, f"{case.name}{'' if case.is_hack else ' (honest)'}"


def row_of(key: Key, verdict: str, speedup: float | None, device: str) -> Row:
    """One row of the table."""
    commit = (
        os.environ.get("KC_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return {
        **dict(zip(COLUMNS, key, strict=False)),
        "verdict": verdict,
        "speedup": "" if speedup is None else f"{speedup:.3g}",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": commit,
    }


def kept(path: Path) -> dict[Key, Row]:
    """The rows of an earlier run, except errors, which are asked about again."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["verdict"] != "error"]
    return {(row["evaluator"], row["suite"], row["candidate"]): row for row in rows}


def write(rows: dict[Key, Row], path: Path) -> None:
    """Write one row for each evaluator and candidate, in the order of their names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(row for _, row in sorted(rows.items()))


if __name__ == "__main__":
    sys.exit(main())
