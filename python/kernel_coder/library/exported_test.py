"""Checks an exported kernel on this machine: ``pytest PACKAGE``. The verdict that it was exported with is verdict.json.

On a device for which the kernel was not verified, the tests run the fallback, and the test of the kernel is skipped.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import PACKAGE
import pytest
import torch
from PACKAGE import reference

HERE = Path(__file__).parent
VERDICT = json.loads((HERE / "verdict.json").read_text(encoding="utf-8"))
DEVICE = "cuda" if VERDICT["device"] != "cpu" and torch.cuda.is_available() else "cpu"

TOLERANCE = 1e-4 if VERDICT["errors"] and max(one["relative_error"] for one in VERDICT["errors"]) < 1e-5 else 1e-2
"""Largest relative error of an output, as the norm of the error over the norm of the reference."""


def made(seed: int) -> tuple[Any, torch.nn.Module, list[Any]]:
    """Return the kernel, the reference with the same parameters, and inputs."""
    torch.manual_seed(seed)
    kernel = PACKAGE.Kernel().to(DEVICE)
    given = PACKAGE.init_arguments()
    plain = getattr(reference, PACKAGE.FACTS["entry_point"])(*given[0], **given[1]).to(DEVICE)
    plain.load_state_dict(kernel.state_dict())
    inputs = [one.to(DEVICE) if isinstance(one, torch.Tensor) else one for one in reference.get_inputs()]
    return kernel.eval(), plain.eval(), inputs


def outputs(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def differ(found: Any, expected: Any) -> float:
    """Return the largest relative error of an output."""
    errors = []
    for one, other in zip(outputs(found), outputs(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        size = float(other.double().norm()) or 1.0
        errors.append(float((one.double() - other.double()).norm()) / size)
    return max(errors)


def test_the_sources_are_those_of_the_verdict() -> None:
    for name, digest in (("kernel.py", "candidate_hash"), ("reference.py", "task_hash")):
        assert hashlib.sha256((HERE / name).read_bytes()).hexdigest() == VERDICT[digest]
    assert VERDICT["outcome"] == "correct"


@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_gives_the_results_of_the_reference(seed: int) -> None:
    kernel, plain, inputs = made(seed)
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if (problem := kernel.problem(tensors)) is not None:
        pytest.skip(problem[1])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)
        assert differ(kernel(*inputs), plain(*inputs)) <= TOLERANCE


def test_the_op_is_registered_as_torch_asks() -> None:
    kernel, _, inputs = made(0)
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if VERDICT["errors"] and all(one.is_floating_point() for one in tensors):
        tensors = [one.requires_grad_() for one in tensors]
    state = [*kernel.parameters(), *kernel.buffers()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        torch.library.opcheck(PACKAGE.op, (kernel._number, tensors, state), rtol=TOLERANCE, atol=TOLERANCE)


def test_gradients_are_those_of_the_reference() -> None:
    kernel, plain, inputs = made(0)
    grads = []
    for module in (kernel, plain):
        given = [
            one.detach().clone().requires_grad_() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
            for one in inputs
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = [one for one in outputs(module(*given)) if one.requires_grad]
        if not found:
            pytest.skip("the module has no gradient")
        wanted = [*(one for one in given if isinstance(one, torch.Tensor) and one.requires_grad), *module.parameters()]
        grads.append(torch.autograd.grad([one.sum() for one in found], wanted, allow_unused=True))
    for one, other in zip(*grads, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert differ(one, other) <= TOLERANCE


def test_it_runs_under_torch_compile() -> None:
    kernel, plain, inputs = made(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = torch.compile(kernel, fullgraph=True)(*inputs)
        assert differ(found, plain(*inputs)) <= TOLERANCE
