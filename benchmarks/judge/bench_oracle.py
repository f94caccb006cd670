"""Times a task's reference in float64 with cuDNN and without, beside float32. The Examiner computes it in float64.

    python benchmarks/judge/bench_oracle.py PATH/TO/KernelBench/level1           # results/oracle_cuda.csv
    python benchmarks/judge/bench_oracle.py PATH/TO/level1 --only conv --seconds 200

`ms` is the shortest of three calls after a first one, and `gib` the memory that torch allocates at most during a call.
`failure` says why a call failed, for example for lack of memory.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from bench_admission import tasks_in
from kernel_coder.judge.gpu.turns import synchronise
from kernel_coder.judge.wire.trees import map_tensors
from kernel_coder.tasks import Task

RESULTS = Path(__file__).parents[1] / "results"
FORMS = (("float32", True), ("float64", True), ("float64", False))
CALLS = 3


def measure(task: Task, device: torch.device, dtype: torch.dtype, has_cudnn: bool) -> dict[str, Any]:
    """The shortest time of a call and the memory that it takes, or why it failed."""
    names: dict[str, Any] = {"__name__": "reference"}
    exec(compile(task.reference, task.id, "exec"), names)
    torch.manual_seed(0)

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    try:
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=has_cudnn, allow_tf32=False):
            module = names["Model"](*names["get_init_inputs"]()).to(device, dtype)
            inputs = map_tensors(names["get_inputs"](), converted)
            module(*inputs)
            synchronise(device)
            before = 0
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            taken_s = []
            for _ in range(CALLS):
                began = time.perf_counter()
                module(*inputs)
                synchronise(device)
                taken_s.append(time.perf_counter() - began)
            peak = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else 0
            return {"ms": round(1e3 * min(taken_s), 3), "gib": round(peak / (1 << 30), 3), "failure": ""}
    except Exception as error:
        return {"ms": "", "gib": "", "failure": f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of references")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="only tasks with this text in their source, in any case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no task after this time")
    parser.add_argument("--out", type=Path, help="default: results/oracle_DEVICE.csv")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    facts = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or commit.stdout.strip(),
        "command": f"python benchmarks/judge/bench_oracle.py {' '.join(one.name for one in arguments.folders)}",
    }
    until = time.monotonic() + arguments.seconds
    rows: list[dict[str, Any]] = []
    out = arguments.out or RESULTS / f"oracle_{arguments.device}.csv"
    for task in [task for folder in arguments.folders for task in tasks_in(folder)]:
        if time.monotonic() > until or arguments.only.lower() not in task.reference.lower():
            continue
        for dtype, has_cudnn in FORMS:
            found = measure(task, torch.device(arguments.device), getattr(torch, dtype), has_cudnn)
            rows.append({"task": task.id, "dtype": dtype, "cudnn": has_cudnn, **found, **facts})
            print(task.id, dtype, "with cuDNN" if has_cudnn else "without", found, flush=True)
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
