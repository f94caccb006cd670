"""Runs kernels on single elements on whole arrays: a check takes milliseconds, where the interpreter takes fifty.

It implements as much of ``tl`` as kernels need in which program p works on elements ``p * BLOCK`` to ``(p + 1) *
BLOCK`` and no result depends on another element. All programs run at once. A kernel that needs more fails and is not
verified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from torch import Tensor

from kernel_coder.data.verifiers import Candidate, Finding
from kernel_coder.tasks.task import SOLUTION_CLASS, init_arguments
from kernel_coder.tasks.verify import RTOL, SEEDS, _error, _perturb

IMPORTS = re.compile(r"^import triton.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor's memory and offsets into it, in elements."""

    tensor: Tensor
    offset: Tensor | int = 0

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.tensor, self.offset + offset)


def _load(pointer: Pointer, mask: Tensor | None = None, other: float | None = None) -> Tensor:
    flat = pointer.tensor.reshape(-1)
    offset = torch.as_tensor(pointer.offset)
    if mask is None:
        return flat[offset]
    # Without `other` a masked element is undefined. It is NaN here, so that the result of a kernel that uses it is
    # wrong.
    filled = torch.full((), float("nan") if other is None else other)
    return torch.where(mask, flat[torch.where(mask, offset, 0)], filled)


def _store(pointer: Pointer, value: Tensor, mask: Tensor) -> None:
    offset = torch.as_tensor(pointer.offset)
    pointer.tensor.view(-1)[offset[mask]] = value.to(pointer.tensor.dtype)[mask]


def _launched(kernel: Callable[..., None]) -> Any:
    """Make ``kernel[grid](...)`` a single call for all programs."""

    class Jitted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, **constants: Any) -> None:
                passed = [Pointer(each.detach()) if isinstance(each, Tensor) else each for each in arguments]
                _PROGRAMS.append(torch.arange(grid[0])[:, None])
                try:
                    kernel(*passed, **constants)
                finally:
                    _PROGRAMS.pop()

            return launch

    return Jitted()


_PROGRAMS: list[Tensor] = []  # the program ids of the present launch

_TL = SimpleNamespace(
    constexpr=int,
    program_id=lambda axis: _PROGRAMS[-1],
    arange=torch.arange,
    load=_load,
    store=_store,
    maximum=lambda a, b: torch.maximum(a, torch.as_tensor(b)),
    minimum=lambda a, b: torch.minimum(a, torch.as_tensor(b)),
    where=torch.where,
    abs=torch.abs,
    exp=torch.exp,
    log=torch.log,
    sqrt=torch.sqrt,
    rsqrt=torch.rsqrt,
    sin=torch.sin,
    cos=torch.cos,
    erf=torch.erf,
    sigmoid=torch.sigmoid,
)
_TRITON = SimpleNamespace(jit=_launched, cdiv=lambda a, b: -(-a // b))


class ArrayVerifier:
    """Verifies in this process, with the tolerance of the interpreter's check. The code must be trusted.

    >>> from kernel_coder.tasks.generator import generate
    >>> task = generate(2, "ordinary", 1).task
    >>> with ArrayVerifier() as verifier:
    ...     [finding.correct for finding in verifier.verify([Candidate(task, task.solution)])]
    [True]
    """

    name = "arrays"

    def __enter__(self) -> ArrayVerifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        for candidate in candidates:
            try:
                yield _check(candidate)
            except Exception as error:  # the candidate can raise anything
                yield Finding(False, f"{type(error).__name__}: {error}"[:200])


def _check(candidate: Candidate) -> Finding:
    task = candidate.task
    original: dict[str, Any] = {}
    exec(compile(task.reference, "<reference>", "exec"), original)
    new: dict[str, Any] = {"triton": _TRITON, "tl": _TL}
    exec(compile(IMPORTS.sub("", candidate.code), "<candidate>", "exec"), new)
    args, kwargs = init_arguments(original["get_init_inputs"]())
    worst = 0.0
    for seed in SEEDS:
        torch.manual_seed(seed)
        module = original[task.entry_point](*args, **kwargs).eval()
        _perturb(module)
        mine = new[SOLUTION_CLASS](*args, **kwargs).eval()
        mine.load_state_dict(module.state_dict())
        inputs = original["get_inputs"]()
        before = [value.clone() for value in inputs]
        with torch.no_grad():
            got = mine(*inputs)
            plain = module(*before)
            exact = module.double()(*[value.double() for value in before])
        if any(not torch.equal(a, b) for a, b in zip(inputs, before, strict=True)):
            return Finding(False, f"seed {seed}: an input was written to")
        if got.shape != plain.shape or got.dtype != plain.dtype:
            return Finding(False, f"seed {seed}: output is {got.dtype} {list(got.shape)}")
        worst = max(worst, _error(got, exact))
        if not worst <= RTOL:
            return Finding(False, f"seed {seed}: output is off by {worst:.1e}", worst)
    return Finding(True, None, worst)
