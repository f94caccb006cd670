"""Checks that a rewritten pair computes the same as its module, in Triton's interpreter on the CPU or on a GPU.

TRITON_INTERPRET=1 must be set before triton is imported, so the check is a separate process:
``TRITON_INTERPRET=1 python -m kernel_coder.tasks.verify < pairs.jsonl`` (or ``--device cuda`` without the variable). It
reads lines {"name", "python_code", "triton_code"} and writes lines {"name", "error", "reason"}.

A pair is correct if, for each seed, every output has the module's shape and dtype, and every element differs from the
module in fp64 by at most RTOL times the output's largest magnitude (integers must be equal). With a NaN in the first
element of each floating-point input, the outputs must have NaNs in the same places.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernel_coder.interpreter import require_interpreter
from kernel_coder.tasks.task import init_arguments

if TYPE_CHECKING:
    import torch

RTOL = 2e-6
"""Tolerance relative to an output's largest magnitude: about 17 units in the last place of fp32."""

SEEDS = (0, 1)
"""Seeds of the inputs and parameters."""

NAN_SEED = 2
"""Seed of the check with NaNs."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking a pair."""

    name: str
    error: float  # largest relative error
    reason: str | None = None  # why the pair is wrong; None: it is correct


def verify(pairs: Iterable[tuple[str, str, str]]) -> list[Check]:
    """Checks triples (name, python_code, triton_code) in one interpreter process. The code must be trusted.

    Raises ValueError if the interpreter does not work with the installed packages.
    """
    require_interpreter()
    keys = ("name", "python_code", "triton_code")
    request = "".join(json.dumps(dict(zip(keys, pair, strict=True))) + "\n" for pair in pairs)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(
        [sys.executable, "-m", "kernel_coder.tasks.verify"],
        input=request,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"the interpreter process failed: {process.stderr.strip().splitlines()[-1]}")
    return [Check(**json.loads(line)) for line in process.stdout.splitlines()]


def check(
    name: str,
    python_code: str,
    triton_code: str,
    folder: Path,
    device: str = "cpu",
    *,
    new_name: str | None = None,
    with_nan: bool = True,
    with_other_inputs: bool = False,
    evaluation: bool = True,
) -> Check:
    """Checks one pair in this process.

    Args:
        name: the module's class.
        python_code: source of the module.
        triton_code: source of the candidate.
        folder: receives the two sources as files.
        device: ``cpu`` or ``cuda``.
        new_name: the candidate's class; None: ``<name>New``.
        with_nan: also check with NaNs in the inputs. ``tl.maximum`` and ``tl.max`` drop NaNs by default, so handwritten
            kernels often fail this.
        with_other_inputs: also refuse a module whose outputs do not depend on its inputs, because any candidate with
            the same constant would pass.
        evaluation: put both modules in evaluation mode; False leaves them as constructed, as KernelBench does.
    """
    import torch

    original = load_source(python_code, folder / f"{name}_original.py")
    candidate = load_source(triton_code, folder / f"{name}_new.py")
    args, kwargs = init_arguments(original.get_init_inputs())
    worst = 0.0
    for seed in (*SEEDS, NAN_SEED) if with_nan else SEEDS:
        torch.manual_seed(seed)
        module = getattr(original, name)(*args, **kwargs).train(not evaluation)
        _perturb(module)
        new = getattr(candidate, new_name or f"{name}New")(*args, **kwargs).train(not evaluation)
        new.load_state_dict(module.state_dict())
        module, new = module.to(device), new.to(device)
        inputs = [_moved(value, device) for value in original.get_inputs()]
        if seed == NAN_SEED:
            for value in inputs:
                if _is_floating(value):
                    value.view(-1)[0] = float("nan")
        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        with torch.no_grad():
            got = _outputs(new(*inputs))
            plain = _outputs(module(*before))
            exact = _outputs(module.double()(*[v.double() if _is_floating(v) else v for v in before]))
        if any(not _same(a, b) for a, b in zip(inputs, before, strict=True)):
            return Check(name, worst, f"seed {seed}: an input was written to")
        if len(got) != len(plain):
            return Check(name, worst, f"seed {seed}: {len(got)} outputs instead of {len(plain)}")
        for index, (a, like, b) in enumerate(zip(got, plain, exact, strict=True)):
            if a.shape != like.shape or a.dtype != like.dtype:
                return Check(name, worst, f"seed {seed}: output {index} is {a.dtype} {list(a.shape)}")
            worst = max(worst, _error(a, b))
            if not worst <= RTOL:
                return Check(name, worst, f"seed {seed}: output {index} is off by {worst:.1e}")
        if with_other_inputs and seed == SEEDS[0]:
            others = [_moved(value, device) for value in original.get_inputs()]
            with torch.no_grad():
                again = _outputs(module(*[v.double() if _is_floating(v) else v for v in others]))
            is_drawn = any(not _same(a, b) for a, b in zip(inputs, others, strict=True))
            if is_drawn and all(_alike(a, b) for a, b in zip(exact, again, strict=True)):
                return Check(name, worst, "the module's outputs are the same for other inputs")
    return Check(name, worst)


def _perturb(module: torch.nn.Module) -> None:
    """Changes every parameter, so that gains of one and biases of zero do not hide mistakes."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))


def _outputs(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _error(got: torch.Tensor, exact: torch.Tensor) -> float:
    import torch

    if not got.is_floating_point():
        return float((got != exact).any())
    if not torch.equal(got.isnan(), exact.isnan()):
        return float("inf")
    scale = exact.nan_to_num(0.0).abs().max().item() or 1.0
    return (got.double() - exact).nan_to_num(0.0, posinf=float("inf")).abs().max().item() / scale


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return a.shape == b.shape and (torch.allclose(a, b, rtol=RTOL) if a.is_floating_point() else torch.equal(a, b))


def _moved(value: Any, device: str) -> Any:
    import torch

    return value.to(device) if isinstance(value, torch.Tensor) else value


def _is_floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _same(a: Any, b: Any) -> bool:
    import torch

    if not isinstance(a, torch.Tensor):
        return bool(a == b)
    return torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def load_source(code: str, path: Path) -> ModuleType:
    """Writes ``code`` to a file and imports it; triton.jit reads a function's source from its file."""
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _checks(lines: Iterable[str], device: str) -> Iterator[Check]:
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        for index, line in enumerate(lines):
            place = Path(folder) / str(index)  # a new folder for each pair, because Python caches sources by path
            place.mkdir()
            row = json.loads(line)
            try:
                yield check(row["name"], row["python_code"], row["triton_code"], place, device)
            except Exception as error:  # a candidate can raise anything
                text = str(error).strip().splitlines() or [""]
                yield Check(row["name"], 0.0, f"{type(error).__name__}: {text[-1][:200]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m kernel_coder.tasks.verify")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if (options.device == "cpu") != (os.environ.get("TRITON_INTERPRET") == "1"):
        sys.exit("set TRITON_INTERPRET=1 for --device cpu, and unset it for --device cuda")
    for result in _checks(sys.stdin, options.device):
        print(json.dumps(asdict(result)), flush=True)
