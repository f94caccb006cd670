"""``kernel-coder env``: prints versions, compiled parts, and how to install what is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from kernel_coder.interpreter import interpreter_problem
from kernel_coder.run.errors import EXIT_MISTAKE
from kernel_coder.run.flags import FlagParser, UsageError, end

PACKAGES = {
    "torch": "pip install torch",
    "triton": "pip install triton (comes with torch's CUDA builds)",
    "transformers": "pip install 'kernel-coder[train]'",
    "accelerate": "pip install 'kernel-coder[train]'",
    "peft": "pip install 'kernel-coder[train]'",
    "safetensors": "pip install 'kernel-coder[train]'",
    "tensorboard": "pip install 'kernel-coder[train]'",
    "datasets": "pip install 'kernel-coder[hub]'",
    "pyarrow": "pip install pyarrow",
}


def collect() -> dict[str, str]:
    """Return the report as names and values. The value of a missing item begins with "missing" and names the remedy."""
    report = {
        "kernel_coder": _version("kernel-coder") or "not installed, run from a source tree",
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpu": _cpu(),
    }
    for package, remedy in PACKAGES.items():
        report[package] = _version(package) or f"missing; {remedy}"
    triton, numpy = _version("triton"), _version("numpy")
    report["numpy"] = numpy or "missing; pip install numpy"
    if triton is not None:
        report["triton interpreter"] = interpreter_problem(triton, numpy) or "works with this numpy"
    report["nvcc"] = _nvcc()
    report.update(_core())
    return report


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            facts = dict(part.split(":", 1) for line in lines if ":" in (part := line.strip()))
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    levels = [level for level in ("avx2", "fma", "avx512f", "avx512_bf16") if level in facts.get("flags", "").split()]
    return f"{facts.get('model name', platform.machine())} ({', '.join(levels) or 'no AVX2'})"


def _nvcc() -> str:
    path = shutil.which("nvcc")
    if path is None:
        return "missing; only needed to build the CUDA ops: install the CUDA toolkit and put nvcc on PATH"
    printed = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return f"{printed.strip().splitlines()[-1] if printed.strip() else 'unknown version'} ({path})"


def _core() -> dict[str, str]:
    """Return the three binaries: their build information, and whether they are loaded."""
    try:
        core = importlib.import_module("kernel_coder._core")
    except ImportError as error:
        return {"core": f"missing; {error}"}
    import torch

    info = core._C.build_info()
    report = {
        "core": f"loaded; built by {info['compiler']} against torch {info['torch']}",
        "cpu ops": "loaded",
    }
    if not core.CUDA_LIBRARY.exists():
        report["cuda ops"] = (
            "missing; this build had no nvcc. Install the CUDA toolkit, then: make cuda "
            "(or KC_CUDA=ON pip install --no-build-isolation .)"
        )
    elif not core.cuda_loaded:
        report["cuda ops"] = (
            f"built for {info['cuda_architectures']} by nvcc {info['nvcc']}, not loaded: this torch is a CPU build. "
            "Install a CUDA build of torch"
        )
    else:
        report["cuda ops"] = f"loaded; built for {info['cuda_architectures']} by nvcc {info['nvcc']}"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        report["gpus"] = ", ".join(names)
    else:
        report["gpus"] = "none visible"
    return report


def next_command(report: Mapping[str, str]) -> str:
    """Return the command to type next: it installs the most important missing item, or runs a first evaluation.

    >>> next_command({"core": "loaded", "transformers": "5.6", "triton": "3.7"})
    'kernel-coder evaluate --model nano --limit 8'
    """
    if report["core"].startswith("missing"):
        return "pip install --force-reinstall kernel-coder"
    if any(report.get(name, "").startswith("missing") for name in ("transformers", "accelerate", "triton")):
        return "pip install 'kernel-coder[train]'"
    return "kernel-coder evaluate --model nano --limit 8"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report. The exit code is 1 if the core cannot be loaded."""
    parser = FlagParser(prog="kernel-coder env", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as a JSON object")
    try:
        arguments = parser.parse(argv)
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    report = collect()
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        width = max(map(len, report))
        for name, value in report.items():
            print(f"{name:<{width}}  {value}")
        print(f"next: {next_command(report)}")
    return 1 if report["core"].startswith("missing") else 0


if __name__ == "__main__":
    sys.exit(main())
