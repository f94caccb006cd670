"""The first hour of a stranger, as a transcript: from a wheel alone, in a new environment, without a clone.

    python release/first_hour.py dist/kernel_coder-0.1.0-cp311-*.whl --transcript first_hour.txt

Installs the wheel with its extra `train`, looks at the environment, judges three candidates, evaluates the packaged
model, refines four ordinary modules, trains for about two minutes and writes the report. Ends with exit code 1 if a
command fails, prints a traceback or does not end with the next command to type, or if all of it takes longer than 15
minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 15 * 60
"""Upper limit for everything after the installation's downloads, in seconds, on two cores."""

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass Model(nn.Module):\n"
ONE = "\n\ndef get_inputs():\n    return [torch.randn(32, 128)]\n\n\ndef get_init_inputs():\n    return []\n"
TWO = ONE.replace("[torch.randn(32, 128)]", "[torch.randn(32, 128), torch.randn(32, 128)]")
FORWARD = "    def forward(self, {names}):\n        return {result}\n"
MODULES = {
    "silu.py": HEAD + FORWARD.format(names="x", result="x * torch.sigmoid(x)") + ONE,
    "gated.py": HEAD + FORWARD.format(names="x, y", result="x * torch.sigmoid(y)") + TWO,
    "nested.py": HEAD + FORWARD.format(names="x", result="F.relu(torch.sigmoid(x))") + ONE,
    "residual.py": HEAD + FORWARD.format(names="x, y", result="x + y.tanh()") + TWO,
}
"""Four ordinary modules: an operator and a nested call, two inputs, a function in a function, a method."""

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, {value}, mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
"""
FILES = {
    "relu.py": HEAD + FORWARD.format(names="x", result="torch.relu(x)") + ONE.replace("randn", "rand"),
    "right.py": KERNEL.format(value="tl.maximum(x, 0.0)"),
    "copies.py": KERNEL.format(value="x"),
    "cuda_source.py": "__global__ void relu(float* x, float* out, int n) { int i = threadIdx.x; out[i] = x[i]; }\n",
    **MODULES,
}

COMMANDS = [
    "kernel-coder --version",
    "kernel-coder env",
    *(f"kernel-coder judge relu.py {name}" for name in ("right.py", "copies.py", "cuda_source.py")),
    "kernel-coder evaluate --model nano --limit 16 --output runs/evaluate",
    *(f"kernel-coder refine {name} --turns 2 --parallel 8 --stop-when-correct" for name in MODULES),
    "kernel-coder train --config nano --run.max_steps 6 --run.eval_steps 6 --eval.num_tasks 32",
    "kernel-coder report runs/latest",
]
NO_NEXT = {"kernel-coder --version"}
"""Commands that need not name a next one."""


def main() -> int:
    """Runs the commands and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the new environment")
    parser.add_argument("--torch", default="torch", help="requirement for torch, such as torch==2.11.0")
    parser.add_argument("--transcript", type=Path, default=Path("first_hour.txt"))
    options = parser.parse_args()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as name, options.transcript.open("w", encoding="utf-8") as file:
        folder = Path(name)
        subprocess.run([options.python, "-m", "venv", folder / "env"], check=True)
        binaries = folder / "env" / "bin"
        work = folder / "work"
        work.mkdir()
        for path, text in FILES.items():
            (work / path).write_text(text, encoding="utf-8")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        environment["PATH"] = f"{binaries}:{environment['PATH']}"

        def run(command: str, shown: str | None = None) -> tuple[int, str]:
            began = time.monotonic()
            done = subprocess.run(
                command,
                shell=True,
                cwd=work,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            took = f"({time.monotonic() - began:.0f} s, exit code {done.returncode})"
            text = done.stdout.replace(str(work), "~/work").replace(str(folder), "~")
            file.write(f"$ {shown or command}\n{text.rstrip()}\n{took}\n\n")
            file.flush()
            print(f"{shown or command}  {took}", flush=True)
            return done.returncode, text

        wheel = options.wheel.resolve()
        code, _ = run(f"pip install -qq '{options.torch}' '{wheel}[train]'", f"pip install '{wheel.name}[train]'")
        if code:
            print("the wheel cannot be installed", file=sys.stderr)
            return 1
        began = time.monotonic()
        for command in COMMANDS:
            code, text = run(command)
            lines = text.strip().splitlines() or [""]
            is_search = command.startswith("kernel-coder refine")
            if code not in ((0, 1) if is_search else (0,)):
                problems.append(f"{command}: exit code {code}")
            if "Traceback" in text:
                problems.append(f"{command}: a traceback")
            if command not in NO_NEXT and not lines[-1].startswith("next: "):
                problems.append(f"{command}: its last line is no next command: {lines[-1]}")
            if is_search and code == 1:
                print(f"  no correct kernel for {command.split()[2]}")
        took = time.monotonic() - began
        if took > LIMIT_S:
            problems.append(f"all commands took {took:.0f} s, more than {LIMIT_S}")
        file.write(f"all commands after the installation: {took:.0f} s\n")
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    print(f"{len(COMMANDS)} commands in {took:.0f} s, {len(problems)} problems: {options.transcript}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
