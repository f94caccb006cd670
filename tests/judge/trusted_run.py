"""Checks that honest candidates of the corpus agree with their references. Runs in its own process, without a sandbox.

    [TRITON_INTERPRET=1] python trusted_run.py [--device cpu] NAME...

writes a line {"name", "problem", "seconds"} for each candidate; problem is null if it agrees. The weights are moved off
their initial values and given to the candidate by name, or by order if the names differ. The correct outputs are those
of the reference in float64. The error of an output may be a small factor times the error of the reference in its own
precision. The inputs are the task's own, normal, large, shifted, and partly NaN; a second shape is checked, too. For a
candidate whose gradients are compared, these count as outputs.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import corpus
import torch
from kernel_coder.judge.examiner.hidden_shapes import with_named_sizes
from kernel_coder.judge.runner import interpreted_bfloat16
from kernel_coder.judge.wire.module_calls import called, load_state, one_value, state_of
from kernel_coder.judge.wire.trees import tensors_of
from torch import Tensor, nn

FACTOR = 4.0  # times the reference's own error
FLOOR = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # of the output's largest magnitude
FAMILIES = ("own", "normal", "large", "shifted", "nan")
SPECIALISED = {"softmax_for_8_rows", "softmax_for_96_columns"}  # these candidates refuse other shapes
WITHOUT_NAN = {"triu_matmul", "labelled"}  # a candidate may leave out a product with zero
WITHOUT_NAN |= {"top_values", "row_max", "router", "largest_of_eight", "row_int8"}  # the order of NaNs is not defined


def load(source: str, name: str, folder: Path) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up there
    spec.loader.exec_module(module)
    return module


def build(module: ModuleType, name: str, init: list[Any]) -> nn.Module:
    """Build the module. As in KernelBench, `init` is a list, or a list of positional and a dict of named arguments."""
    by_place, by_name = init if len(init) == 2 and isinstance(init[1], dict) else (init, {})
    return getattr(module, name)(*by_place, **by_name)


def change_state(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.parameters():  # a buffer may be a constant, which candidates may write into their kernels
            value.add_(0.2 * torch.rand_like(value))


def give_state(
    model: nn.Module, new: nn.Module, constant: Collection[str], initial: Mapping[str, float | None]
) -> dict[str, str]:
    """Load the reference's state as the judge does. Return the candidate's name of each tensor."""
    found = load_state(new, state_of(model), random_only=False, optional=constant, initial=initial)
    assert found is not None, "other state"
    return found.names


def with_gradients(model: nn.Module, inputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of inputs and parameters for random gradients of the outputs."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        outputs = tensors_of(model(*(value.clone() for value in inputs)))
    cotangents = [torch.randn(one.shape, generator=rng).to(one) for one in outputs if one.is_floating_point()]
    return tensors_of(called(model, inputs, cotangents, parameters))


def inputs_of(family: str, values: list[Tensor]) -> list[Tensor]:
    changed = []
    for value in values:
        if value.is_floating_point() and family != "own":
            fresh = torch.randn_like(value)
            fresh = {"large": fresh * 10, "shifted": fresh + 5}.get(family, fresh)
            if family == "nan":
                fresh.view(-1)[0] = float("nan")
            changed.append(fresh)
        else:
            changed.append(value)
    return changed


def double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def flat(value: Any) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {"output": value}
    if isinstance(value, dict):
        return {f"output[{key!r}]": part for key, part in sorted(value.items())}
    kind = "tuple" if isinstance(value, tuple) else type(value).__name__  # torch.return_types.topk is one
    return {f"{kind} {index}": part for index, part in enumerate(value)}


def difference(got: Any, like: Any, exact: Any) -> str | None:
    parts, likes, exacts = flat(got), flat(like), flat(exact)
    if parts.keys() != likes.keys():
        return f"outputs {list(parts)} instead of {list(likes)}"
    for name, part in parts.items():
        reference, oracle = likes[name], exacts[name]
        if type(part) not in (Tensor, nn.Parameter) or (part.dtype, part.shape) != (reference.dtype, reference.shape):
            return f"{name} is {type(part).__name__} {part.dtype} {list(part.shape)}"
        if part.device != reference.device:
            return f"{name} is on {part.device}"
        if not part.is_floating_point():
            if not torch.equal(part, reference):
                return f"{name} differs"
            continue
        finite = oracle.isfinite() & reference.isfinite()
        if not torch.equal(part[~finite].nan_to_num(1.5), reference[~finite].nan_to_num(1.5)):
            return f"{name} differs where the reference is not finite"
        if not finite.any():
            continue
        oracle = oracle[finite]
        scale = oracle.abs().max().item()
        bound = max(FACTOR * (reference[finite].double() - oracle).abs().max().item(), FLOOR[part.dtype] * scale)
        error = (part[finite].double() - oracle).abs().max().item()
        if not error <= bound:
            return f"{name} is off by {error:.1e} where {bound:.1e} is allowed"
    return None


def check(candidate: corpus.Candidate, device: str, folder: Path) -> str | None:
    reference = load(with_named_sizes(candidate.task.source), "reference", folder)
    new_module = load(candidate.source, "new", folder)
    shapes = (({}, FAMILIES), (candidate.task.second, ("own",)))
    for shape, families in shapes[: 1 if candidate.name in SPECIALISED else 2]:
        vars(reference).update(shape)
        init = reference.get_init_inputs()
        torch.manual_seed(3)
        model = build(reference, "Model", init)
        initial = {name: one_value(value) for name, value in state_of(model).items()}
        change_state(model)
        new = build(new_module, "ModelNew", init)
        names = give_state(model, new, dict(model.named_buffers()), initial)
        model, new = model.to(device), new.to(device)
        trained = [state_of(new)[names[name]] for name, _ in model.named_parameters()] if candidate.gradients else []
        for family in families:
            if family in ("large", "shifted", "nan") and candidate.gradients:
                continue  # the gradients of a softmax of large numbers are rounding errors
            if family == "nan" and candidate.task.name in WITHOUT_NAN:
                continue
            inputs = [value.to(device) for value in inputs_of(family, reference.get_inputs())]
            theirs = [value.clone() for value in inputs]
            exact_inputs = [double(value).clone() for value in inputs]
            wide = copy.deepcopy(model).double()
            if candidate.gradients:
                got = with_gradients(new, theirs, trained)
                like = with_gradients(model, inputs, list(model.parameters()))
                exact = with_gradients(wide, exact_inputs, list(wide.parameters()))
            else:
                with torch.no_grad():
                    got, like, exact = new(*theirs), model(*inputs), wide(*exact_inputs)
            problem = difference(got, like, exact)
            if problem is None and not all(
                torch.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True) for a, b in zip(theirs, inputs, strict=True)
            ):
                problem = "an input was written to"
            if problem:
                return f"{family} inputs, {'second' if shape else 'own'} shape: {problem}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    if options.device == "cpu":
        interpreted_bfloat16.install()
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    by_name = {candidate.name: candidate for candidate in corpus.honest()}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            start = time.perf_counter()
            place = Path(folder) / name  # a new folder for each candidate, because Python caches the source of a path
            place.mkdir()
            try:
                problem = check(by_name[name], options.device, place)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            print(json.dumps({"name": name, "problem": problem, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
