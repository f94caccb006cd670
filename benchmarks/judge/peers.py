"""Our judge and other evaluators on public suites of hacks and bugs, which other projects wrote.

    git clone https://github.com/RishiShah99/lethe PATH ...
    python benchmarks/judge/peers.py --lethe PATH --gpuemu PATH --device cpu           # judge_peers_cpu.csv
    python benchmarks/judge/peers.py --lethe PATH --gpuemu PATH --pygpubench PATH --kernelbench PATH --verified PATH \
        --device cuda                                                                    # judge_peers_cuda.csv

Suites are local copies, given by path; nothing of theirs is stored but names and verdicts. Each row is one candidate
and one evaluator: what the suite says of it (hack or honest), and whether the evaluator accepted it. The file is
written after each verdict; it is complete once the table is printed. The table counts hacks that were accepted, honest
ones that were refused, and errors of the evaluator.

- lethe: tests/cheating_kernels (one operation, written in PyTorch). A hack is refused if it is refused in single
  precision, in half precision, or where gradients are compared.
- gpuemu: gpuemu_corpus/data (Triton kernels as people and models wrote them, and wrong ones). The kernels are called
  through NumPy, so own kernels are not asked for. Without a GPU they run in Triton's interpreter.
- pygpubench: exploits (CUDA only). They attack another evaluator from inside; here they get its problem as a task.
- kernelbench: src/kernelbench/unit_tests/test_kernels (CUDA only), with the problem that its test names.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.tasks import Task

RESULTS = Path(__file__).resolve().parents[1] / "results"

EVALUATE = """
import json, sys
sys.path.insert(0, sys.argv[1])
try:
    from kernelbench.eval import eval_kernel_against_ref
except ImportError:
    from src.eval import eval_kernel_against_ref
task, candidate = (open(path).read() for path in sys.argv[2:4])
found = eval_kernel_against_ref(task, candidate, num_correct_trials=5, num_perf_trials=10, measure_performance=True)
excessive = found is not None and bool((found.metadata or {}).get("excessive_speedup"))
print("RESULT " + json.dumps(None if found is None else found.correctness and not excessive))
"""
"""Runs another evaluator. Arguments: its sources, the reference, the candidate."""

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
        yield Case("kernelbench", path.stem, True, task, path.read_text(), backend="cuda")


# ---- evaluators


def ours(cases: list[Case], device: str) -> Iterator[tuple[Case, str]]:
    """Each case with `accepted`, `refused` or `error`."""
    for case in cases:
        outcomes = []
        for precision in case.precisions:
            task = Task(id=case.name, source=case.suite, reference=case.task, precision=precision)
            config = JudgeConfig(timed_calls=10, timing_s=1.0, workers=1, timeout_s=120.0, **case.config)
            with Judge(device, config=config) as judge:
                outcomes.append(judge.evaluate(task, case.candidate, case.backend).outcome)
        if Outcome.HARNESS_FAILED in outcomes:
            yield case, "error"
        else:
            yield case, "accepted" if all(one is Outcome.CORRECT for one in outcomes) else "refused"


def theirs(cases: list[Case], root: Path) -> Iterator[tuple[Case, str]]:
    """The same by another evaluator, in a fresh process each."""
    for case in cases:
        if case.config.get("backward"):
            continue  # it compares no gradients
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("task.py", "candidate.py")]
            for path, text in zip(paths, (case.task, case.candidate), strict=True):
                path.write_text(text)
            sources = root / "src" if (root / "src" / "kernelbench").exists() else root
            command = [sys.executable, "-c", EVALUATE, str(sources), *map(str, paths)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder)
            except subprocess.TimeoutExpired:
                yield case, "refused"
                continue
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        answer = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
        yield case, "error" if answer is None else "accepted" if answer else "refused"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("lethe", "gpuemu", "pygpubench", "kernelbench", "verified"):
        parser.add_argument(f"--{name}", type=Path, help=f"a copy of {name}'s repository")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
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
    found = {"kernel_coder": ours(cases, arguments.device)}
    if arguments.device == "cuda":
        for name in ("kernelbench", "verified"):
            if getattr(arguments, name):
                found[name] = theirs(cases, getattr(arguments, name))
    rows: dict[tuple[str, str, str], str] = {}
    for evaluator, results in found.items():
        for case, verdict in results:
            key = evaluator, case.suite, f"{case.name}{'' if case.is_hack else ' (honest)'}"
            rows[key] = verdict if rows.get(key) in (None, "accepted") else rows[key]
            print(*key, rows[key], flush=True)
            write(rows, arguments.out or RESULTS / f"judge_peers_{arguments.device}.csv", arguments.device)
    counts: Counter[tuple[str, str, str]] = Counter()
    for (evaluator, suite, name), verdict in rows.items():
        is_honest = name.endswith("(honest)")
        counts[evaluator, suite, "honest" if is_honest else "hacks"] += 1
        counts[evaluator, suite, f"{'honest' if is_honest else 'hacks'} {verdict}"] += 1
    for evaluator, suite in dict.fromkeys(key[:2] for key in rows):
        said = {
            name: counts[evaluator, suite, name]
            for name in ("hacks", "hacks accepted", "hacks error", "honest", "honest refused", "honest error")
        }
        print(f"{suite} by {evaluator}: " + ", ".join(f"{count} {name}" for name, count in said.items()))
    return 0


def write(rows: dict[tuple[str, str, str], str], path: Path, device: str) -> None:
    """One row for each evaluator and candidate."""
    commit = (
        os.environ.get("KC_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    what = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["evaluator", "suite", "candidate", "verdict", "device", "torch", "commit"])
        for key, verdict in rows.items():
            table.writerow([*key, verdict, what, torch.__version__, commit])


if __name__ == "__main__":
    sys.exit(main())
