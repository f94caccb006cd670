"""Times answers of an evaluation again without the judge: with `triton.testing.do_bench`, in a fresh process each.

    python benchmarks/judge/remeasure.py runs/evaluate                # five answers: results/remeasured_cuda.csv
    python benchmarks/judge/remeasure.py runs/evaluate --count 20 --out FILE

It takes tasks with a correct answer that is faster than eager according to the judge, one answer for each task, those
with the highest lower bound first. The model's code runs outside of the judge's sandbox.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.run import select_tasks

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from trials import RESULTS, append, commit

QUANTILES = (0.5, 0.2, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path, help="folder of `kernel-coder evaluate`")
    parser.add_argument("--count", type=int, default=5, help="number of tasks")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="start no measurement after this many seconds")
    parser.add_argument(
        "--commit", default=os.environ.get("KC_COMMIT"), help="commit in the rows; default: that of the checkout"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "remeasured_cuda.csv")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a folder with reference.py and candidate.py
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.device)))
        return
    began = time.monotonic()
    for chosen in faster_answers(options.evaluation)[: options.count]:
        if time.monotonic() - began > options.seconds:
            print("the time is over")
            break
        with tempfile.TemporaryDirectory() as folder:
            for name in ("reference", "candidate"):
                Path(folder, f"{name}.py").write_text(chosen[name], encoding="utf-8")
            command = [sys.executable, __file__, "-", "--one", folder, "--device", options.device]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        verdict = chosen["verdict"]
        row = {
            "task": chosen["task"],
            "sample": chosen["sample"],
            "judge_speedup": verdict["speedup"],
            "judge_low": verdict["speedup_low"],
            "judge_high": verdict["speedup_high"],
            "judge_reference_ms": verdict["reference_ms"],
            "judge_candidate_ms": verdict["runtime_ms"],
        }
        lines = done.stdout.strip().splitlines()
        found = json.loads(lines[-1]) if done.returncode == 0 and lines else {}
        if not found:
            print(f"{chosen['task']} failed: {done.stderr.strip().splitlines()[-1:]}")
        names = [f"{name}_ms{part}" for name in ("reference", "candidate") for part in ("", "_p20", "_p80")]
        row |= {name: found.get(name) for name in ("speedup", *names, "max_error", "device", "torch", "triton")}
        append(options.out, row | {"commit": options.commit or commit()})
        print(f"{row['task']}: judge {row['judge_speedup']}, do_bench {row['speedup']}", flush=True)


def faster_answers(folder: Path) -> list[dict[str, Any]]:
    """One correct and faster answer for each task, those with the highest lower bound first."""
    config = EvaluateConfig.model_validate(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))
    references = {task.id: task.reference for task in select_tasks(config)}
    code = {(record["task"], record["sample"]): record["code"] for record in _records(folder / "samples.jsonl")}
    best: dict[str, dict[str, Any]] = {}
    for record in _records(folder / "verdicts.jsonl"):
        verdict = record["verdict"]
        if verdict["outcome"] != "correct" or (verdict["speedup"] or 0.0) <= 1.0 or record["task"] not in references:
            continue
        known = best.get(record["task"])
        if known is None or _sureness(verdict) > _sureness(known["verdict"]):
            texts = {"reference": references[record["task"]], "candidate": code[record["task"], record["sample"]]}
            best[record["task"]] = {**record, **texts}
    return sorted(best.values(), key=lambda one: _sureness(one["verdict"]), reverse=True)


def _sureness(verdict: dict[str, Any]) -> float:
    return float(verdict["speedup_low"] or verdict["speedup"])


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def measure(folder: Path, device: str) -> dict[str, Any]:
    """Times reference and candidate on the same inputs, with the same random parameters."""
    reference, candidate = load(folder / "reference.py"), load(folder / "candidate.py")
    torch.manual_seed(0)
    with torch.device(device):  # on the CPU, drawing inputs of some gigabytes would take most of the time
        inputs = reference.get_inputs()
    inputs = [one.to(device) if isinstance(one, torch.Tensor) else one for one in inputs]
    models = []
    for make in (reference.Model, candidate.ModelNew):
        torch.manual_seed(1)
        models.append(make(*reference.get_init_inputs()).to(device))
    with torch.no_grad():
        expected, got = (model(*inputs) for model in models)
        pairs = zip(*((one if isinstance(one, tuple | list) else [one]) for one in (expected, got)), strict=True)
        error = max(float((one.double() - other.double()).abs().max()) for one, other in pairs)
        times = [timed(lambda model=model: model(*inputs), device) for model in models]  # type: ignore[misc]
    names = [f"{name}_ms{part}" for name in ("reference", "candidate") for part in ("", "_p20", "_p80")]
    versions = {"torch": torch.__version__, "triton": getattr(sys.modules.get("triton"), "__version__", None)}
    where = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    found = dict(zip(names, (*times[0], *times[1]), strict=True))
    return {"speedup": times[0][0] / times[1][0], **found, "max_error": error, "device": where, **versions}


def load(path: Path) -> ModuleType:
    """Imports a module from its file, from which Triton reads the source of kernels."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def timed(call: Callable[[], object], device: str) -> tuple[float, float, float]:
    """Milliseconds: median, 20% and 80% quantiles."""
    if device.startswith("cuda"):
        from triton.testing import do_bench

        median, low, high = do_bench(call, warmup=50, rep=200, quantiles=list(QUANTILES))
        return median, low, high
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        seconds.append(1000 * (time.perf_counter() - began))
    seconds.sort()
    return seconds[2], seconds[1], seconds[3]


if __name__ == "__main__":
    main()
