"""Builds the packaged pairs: ``python -m kernel_coder.tasks.build_pairs``.

Inductor lowers every module of ``kernel_coder.tasks.modules``. The result is rewritten in readable form, compared with
the module in fp64 by Triton's interpreter, and compiled to PTX. Correct pairs are written in KernelBook's columns, with
a data card that lists the dropped modules. This needs torch 2.13, triton and pyarrow, but no GPU. The same versions
give the same bytes: ``--check`` builds everything again and compares.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_coder.interpreter import require_interpreter
from kernel_coder.tasks.inductor import CAPABILITY, check_versions, lower
from kernel_coder.tasks.modules import FAMILIES, all_modules
from kernel_coder.tasks.readable import Kernel, Readable, rewrite
from kernel_coder.tasks.verify import RTOL, SEEDS, load_source, verify

DATA = Path(__file__).parents[1] / "data"
COLUMNS = (
    "entry_point",
    "original_triton_code",
    "python_code",
    "triton_code",
    "repo_name",
    "module_name",
    "synthetic",
    "uuid",
    "licenses",
    "stars",
    "sha",
    "repo_link",
)
LICENCE = "Apache-2.0"


@dataclass(slots=True)
class Built:
    """The results of a build."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    families: dict[str, str] = field(default_factory=dict)  # by module
    dropped: dict[str, str] = field(default_factory=dict)  # the reason, by module
    worst_error: float = 0.0  # largest relative error
    kernels: int = 0
    compiled: int = 0  # number of kernels that compiled to PTX


def build(progress: Callable[[str], None] = lambda line: None) -> Built:
    """Lowers, rewrites, verifies and compiles every module."""
    check_versions()
    result = Built()
    ready: list[tuple[str, str, str, Readable]] = []
    for family, module in all_modules():
        name, code = module.name, module.python_code
        result.families[name] = family
        try:
            lowered = lower(code, name)
            ready.append((name, code, lowered.code, rewrite(code, name, lowered)))
        except ValueError as reason:  # from lower or from rewrite (Unsupported)
            result.dropped[name] = str(reason)
    progress(f"lowered and rewritten: {len(ready)} of {len(result.families)}")

    checks = verify([(name, code, readable.code) for name, code, _, readable in ready])
    for check, (name, code, raw, readable) in zip(checks, ready, strict=True):
        if check.reason is not None:
            result.dropped[name] = f"wrong when run: {check.reason}"
            continue
        result.worst_error = max(result.worst_error, check.error)
        result.rows.append(row(name, code, raw, readable.code))
        result.kernels += len(readable.kernels)
        result.compiled += len(readable.kernels) - len(compile_failures(readable.code, readable.kernels))
    progress(f"verified: {len(result.rows)}; kernels compiled: {result.compiled} of {result.kernels}")
    return result


def row(name: str, python_code: str, original: str, triton_code: str) -> dict[str, Any]:
    """Return one row in KernelBook's columns; ``sha`` and ``uuid`` are hashes of the module's source."""
    sha = hashlib.sha256(python_code.encode()).hexdigest()
    values = (
        name,
        original,
        python_code,
        triton_code,
        "kernel-coder",
        name,
        True,
        int(sha[:12], 16),
        [LICENCE],
        0,
        sha,
        "",
    )
    return dict(zip(COLUMNS, values, strict=True))


def compile_failures(code: str, kernels: Sequence[Kernel]) -> dict[str, str]:
    """Compiles each kernel to PTX for sm_90, without a GPU. Returns the last error line of each kernel that fails."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32)
    failures = {}
    with tempfile.TemporaryDirectory() as folder:
        module = load_source(code, Path(folder) / "candidate.py")
        for kernel in kernels:
            function = getattr(module, kernel.name)
            constants = {(function.arg_names.index(name),): size for name, size in kernel.constants.items()}
            source = ASTSource(function, dict(kernel.signature), constants)
            try:
                if ".visible .entry" not in triton.compile(source, target=target).asm["ptx"]:
                    failures[kernel.name] = "no entry point in the PTX"
            except Exception as error:
                failures[kernel.name] = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return failures


def content_hash(rows: Sequence[dict[str, Any]]) -> str:
    """Return the SHA-256 of the rows as JSON lines with sorted keys. It does not depend on the file's compression."""
    digest = hashlib.sha256()
    for one in rows:
        digest.update(json.dumps(one, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def to_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return the rows as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    special = {"synthetic": pa.bool_(), "uuid": pa.int64(), "stars": pa.int64(), "licenses": pa.list_(pa.string())}
    schema = pa.schema([(column, special.get(column, pa.string())) for column in COLUMNS])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer, compression="zstd", compression_level=19)
    return buffer.getvalue()


#: Results on a GPU (``python -m kernel_coder.tasks.verify --device cuda``), by the content hash of the rows.
GPU_RUNS = {
    "dd27e4047d11ceadea58d100efdadaf60f907b47fc3dd35d3873b3fed847ab2d": "The same check on one NVIDIA H200 (torch\n"
    "   2.11, triton 3.6, 2026-11-21): 118 of 118 right, largest relative error 4.6e-07.",
}


def data_card(built: Built, parquet: bytes) -> str:
    """Return the contents of the README.md beside the data."""
    import torch
    import triton

    kept = [r["entry_point"] for r in built.rows]
    table = []
    for family in FAMILIES:
        names = [name for name in kept if built.families[name] == family]
        table.append(f"| {family} | {len(names)} | {', '.join(names)} |")
    dropped = [f"- `{name}`: {reason}" for name, reason in built.dropped.items()] or ["- none"]
    architecture = f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"
    gpu_run = GPU_RUNS.get(content_hash(built.rows), "None ran on a GPU.")
    versions = f"torch {torch.__version__.split('+')[0]}, triton {triton.__version__}"
    return f"""# pairs.parquet

{len(kept)} PyTorch modules and what Inductor makes of them, in KernelBook's columns. The modules were written for this
project (`kernel_coder/tasks/modules`); none is a KernelBench problem, and a test compares them.

- Made with {versions}, and remade so by `python -m kernel_coder.tasks.build_pairs`; no GPU is needed.
  `--check` builds everything again and compares.
- Licence: {LICENCE}.
- Size: {len(parquet):,} bytes. SHA-256 of the file: `{hashlib.sha256(parquet).hexdigest()}`
- SHA-256 of the rows (`build_pairs.content_hash`): `{content_hash(built.rows)}`

## Columns

| column | what |
|---|---|
| `entry_point`, `module_name` | the class in `python_code` |
| `python_code` | the module, with `get_inputs` and `get_init_inputs` (positional list, then keywords) |
| `original_triton_code` | Inductor's output for {architecture}, see step 1 |
| `triton_code` | its kernels as plain `@triton.jit` functions, launched by the `forward` of `<entry_point>New` |
| `sha`, `uuid` | SHA-256 of `python_code`; its first 48 bits as an integer |
| `licenses`, `repo_name`, `repo_link`, `stars`, `synthetic` | `["{LICENCE}"]`, `kernel-coder`, empty, 0, true |

## How it was made

1. The module is traced with fake CUDA tensors in inference mode and lowered by Inductor as for an H100 (132 SMs,
   {architecture}), with default settings except `graph_partition` and `layout_optimization`, which are off. The output
   is unedited but for two things that name the machine: `kernel path` comments are gone, the backend hash is zeros.
2. The rewrite removes decorators, device guards, layout assertions and benchmark code, spells torch's runtime helpers
   in plain `tl`, folds expressions that are read once, and chooses block sizes. Matrix products and convolutions stay
   calls of torch. Shapes are constants, as Inductor made them: a kernel serves the shapes of `get_inputs` only.
3. Each result ran through Triton's interpreter on the CPU against the module in fp64, with {len(SEEDS)} seeds: same
   shapes and dtypes, and every element within {RTOL:g} of the output's largest magnitude. Once more with a NaN in the
   first element of each floating-point input: NaNs come out in the same places. Inputs are not written to.
4. Each kernel was compiled to PTX for {architecture}: {built.compiled} of {built.kernels} compiled. {gpu_run}

Coverage: {len(kept)} of {len(built.families)} modules. Largest relative error seen: {built.worst_error:.1e}. Dropped:

{chr(10).join(dropped)}

## What it is not

Positives only, small shapes, fp32, forward only, and compiler-shaped: good for learning what Triton looks like, not a
source of fast kernels. `forward` must run without autograd (`torch.no_grad()`).

## Families

| family | pairs | modules |
|---|---|---|
{chr(10).join(table)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m kernel_coder.tasks.build_pairs", description=__doc__)
    parser.add_argument("--output", type=Path, default=DATA, help="folder for pairs.parquet and its README.md")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files there would change")
    options = parser.parse_args(arguments)
    try:
        require_interpreter()
        built = build(progress=print)
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, reason in built.dropped.items():
        print(f"dropped {name}: {reason}")
    parquet = to_parquet(built.rows)
    files = {"pairs.parquet": parquet, "README.md": data_card(built, parquet).encode()}
    if options.check:
        changed = [name for name, new in files.items() if (options.output / name).read_bytes() != new]
        print(f"would change: {', '.join(changed)}" if changed else "unchanged")
        return 1 if changed else 0
    for name, new in files.items():
        (options.output / name).write_bytes(new)
    print(f"{len(built.rows)} pairs, {len(parquet):,} bytes: {options.output / 'pairs.parquet'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
