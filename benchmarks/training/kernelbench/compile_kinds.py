"""Compiles the kernels of every operation kind to PTX for sm_90, without a GPU.

    python benchmarks/training/kernelbench/compile_kinds.py [--chains 20] [KIND ...]

The interpreter accepts programs that Triton's compiler refuses, so this is the second check of a kernel's text. Types
of arguments are guessed from their names. Prints each failure; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from random import Random

from kernel_coder.tasks.build_pairs import CAPABILITY
from kernel_coder.tasks.generator.repository import OPERATIONS, Made, UnsuitableError, make
from kernel_coder.tasks.verify import load_source

BLOCKS = {"BM": 64, "BN": 64, "BK": 32, "BR": 16, "BI": 128, "BLOCK": 1024, "K": 3}
"""Values of ``tl.constexpr`` arguments that the launch computes."""

INTEGERS = re.compile(r"[A-Z]\w?|n|[spd][lhwd]|[ab]_s[bmkn]|span|stride|padding|dilation|OC|O[LDHW]|G|D")
"""Names of integer scalars; all others are floating-point numbers."""


def compile_made(made: Made) -> list[str]:
    """Compiles each kernel of a solution; returns what failed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        module = load_source(made.solution, Path(folder) / "candidate.py")
        for name in re.findall(r"^@triton\.jit\ndef (\w+)\(", made.solution, re.MULTILINE):
            function = getattr(module, name)
            header = re.search(rf"^def {name}\((.*?)\):", made.solution, re.MULTILINE)
            assert header is not None
            signature, constants = {}, {}
            for place, argument in enumerate(header[1].split(", ")):
                word = argument.split(":")[0]
                if argument.endswith("constexpr"):
                    signature[word] = "constexpr"
                    constants[(place,)] = BLOCKS.get(word, 3)
                elif word.endswith("_ptr"):
                    signature[word] = _pointer(word, name, made)
                else:
                    signature[word] = "i32" if INTEGERS.fullmatch(word) else "fp32"
            try:
                if (
                    ".visible .entry"
                    not in triton.compile(ASTSource(function, signature, constants), target=target).asm["ptx"]
                ):
                    failures.append(f"{name}: no entry point in the PTX")
            except Exception as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                failures.append(f"{name}: {lines[-1][:300]}")
    return failures


def _pointer(word: str, kernel: str, made: Made) -> str:
    if word == "mask_ptr":
        return "*i1"
    if word == "t_ptr" or (word == "x_ptr" and kernel.startswith("embedding")):
        return "*i64"
    if word == "out_ptr" and kernel.startswith("arg"):
        return "*i64"
    return "*fp32"


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="operation kinds; default: all")
    parser.add_argument("--chains", type=int, default=20, help="number of chains compiled as well")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jobs: list[tuple[str, int, str | None]] = [(kind, 1, kind) for kind in options.kinds or sorted(OPERATIONS)]
    jobs += [(f"chain {number}", 2 + number % 2, None) for number in range(options.chains)]
    seen: set[str] = set()
    failed = 0
    for label, level, kind in jobs:
        for attempt in range(30):
            try:
                made = make(Random(f"{options.seed} {label} {attempt}"), level, kind)
                break
            except UnsuitableError:
                continue
        else:
            print(f"{label}: no module in 30 attempts")
            failed += 1
            continue
        if made.solution in seen:
            continue
        seen.add(made.solution)
        for failure in compile_made(made):
            failed += 1
            print(f"{label}: {failure}", flush=True)
    print(f"{len(seen)} solutions compiled for sm_90; {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
