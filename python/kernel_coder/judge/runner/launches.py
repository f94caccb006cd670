"""Records the launches of a candidate's own kernels, and changes their effect as the mode of a call asks.

:mod:`.launch_hooks` intercepts launches and passes them to a :class:`Recorder`. All this runs in the candidate's
process, so its findings are used only against the candidate. A launch that it does not see does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.runner.ablation import spoil, spoil_call, undo
from kernel_coder.judge.runner.contents import contains, fingerprint, storage_of, tensors_in, with_pointed_at
from kernel_coder.judge.runner.data_flow import DataFlow, has_numbers
from kernel_coder.judge.runner.kernel_facts import KernelFacts, triton_facts
from kernel_coder.judge.runner.own_kernels import OwnKernels
from kernel_coder.judge.wire.messages import Mode
from kernel_coder.judge.wire.op_work import only_moves_data, work_of

ABLATIONS = frozenset({Mode.ABLATED, Mode.SPOILED})
"""Modes in which own kernels do nothing."""

MAX_RECORDED = 4096
"""Number of launches of one call that are described; later ones are only counted. This limits memory."""

UNINITIALISED_OPERATORS = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
)
"""Operators that return memory without writing to it. It often still holds the result of an earlier call. If every call
had the same result, an audit would see no change, and an output would be right although no kernel wrote it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of an own kernel, or one call of an own extension function.

    Attributes:
        kernel: the function's name in the source.
        compiled: the kernel's name on the device, as profilers report it; None for an interpreted kernel and for a
            function.
        hash: hash of the compiled kernel.
        grid: a kernel's grid; empty for a function.
        tensors: its tensor arguments: ``("x: float32 [4, 8]", ...)``.
        changed: names of the tensors that it changed, and ``result`` for what it returned; None unless audited.
        only_moves_data: each tensor that it changed or returned is a copy of something that existed before, or one
            value repeated; None unless audited or undone.
    """

    kernel: str
    compiled: str | None = None
    hash: str | None = None
    grid: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()
    changed: tuple[str, ...] | None = None
    only_moves_data: bool | None = None


@dataclass
class Launches:
    """The recorded launches and operators of one call.

    Attributes:
        mode: the mode of the call.
        count: number of launches of own kernels.
        moving: in an audit, own launches that only moved data; in mode UNDONE, own launches whose work was undone.
        foreign: launches of Triton kernels that are not the candidate's own.
        replays: CUDA graphs that were replayed. Only a profile shows their kernels. An ablation skips the replay.
        library_ops: in an audit, operators of torch that computed something: no views, allocations, copies or fills.
        library_moves: in an audit, operators of torch that copied or filled memory.
        library_work: in an audit, their operations, as :func:`kernel_coder.judge.wire.op_work.work_of` counts them.
        launches: the first :data:`MAX_RECORDED` own launches.
        by_name: number of own launches by the kernel's name on the device.
        facts: facts about the compiled own kernels.
        flow: in an audit, which memory contains data of own kernels.
    """

    mode: Mode
    count: int = 0
    moving: int = 0
    foreign: int = 0
    replays: int = 0
    library_ops: int = 0
    library_moves: int = 0
    library_work: int = 0
    launches: list[Launch] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    facts: dict[str, KernelFacts] = field(default_factory=dict)
    flow: DataFlow = field(default_factory=DataFlow)

    def reaches(self, tensor: Tensor) -> bool:
        """Return whether in an audit a tensor may contain own kernels' data. After a CUDA graph's replay, all may."""
        return self.replays > 0 or self.flow.reaches(tensor)

    @property
    def are_all(self) -> bool:
        """Whether nothing but own Triton kernels, views and allocations used the device in an audit."""
        others = (self.foreign, self.replays, self.library_ops, self.library_moves)
        return 0 < self.count == sum(self.by_name.values()) and not any(others)  # an extension's function has no name

    def add(self, launch: Launch) -> None:
        """Count a launch, and keep its description."""
        self.count += 1
        self.moving += bool(launch.only_moves_data)
        if launch.compiled is not None:
            self.by_name[launch.compiled] = self.by_name.get(launch.compiled, 0) + 1
        if len(self.launches) < MAX_RECORDED:
            self.launches.append(launch)


MODULES_OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has, such as the dict of its parameters."""


class Recorder:
    """Runs and records the launches of one call, as its mode asks.

    Args:
        own: decides which kernels are the candidate's own.
        mode: see :func:`kernel_coder.judge.runner.launch_hooks.record_launches`.
        products: whether products and convolutions of the library count as its work.
        module: the candidate's module. A function may have stored the address of a tensor in an earlier call. So the
            tensors that the module keeps as attributes are watched, too.
    """

    def __init__(
        self, own: OwnKernels, mode: Mode, products: bool = True, module: torch.nn.Module | None = None
    ) -> None:
        self.own, self.seen, self.products, self.module = own, Launches(mode), products, module
        self.is_ablation = mode in ABLATIONS
        self.pauses = 0
        """Above 0, the operators that run are the recorder's own and are not recorded."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Use torch without recording it."""
        self.pauses += 1
        try:
            with torch.no_grad():
                yield
        finally:
            self.pauses -= 1

    def launch_kernel(
        self, launch: Launch, arguments: Mapping[str, Any], run: Callable[[], Any], kernel: Any | None = None
    ) -> Any:
        """Launch an own Triton kernel.

        Args:
            launch: the names and the grid.
            arguments: the kernel's arguments by name.
            run: launches the kernel.
            kernel: the compiled kernel, unless it is interpreted.
        """
        seen, captures = self.seen, _is_capturing()
        tensors = dict(tensors_in(arguments)) if captures else with_pointed_at(arguments)
        launch = replace(launch, tensors=_described(tensors))
        if launch.compiled is not None:
            self.own.compiled.add(launch.compiled)
        if captures and not self.is_ablation:
            result = run()
            seen.flow.reached |= {storage_of(one) for one in tensors.values()}
            seen.add(launch)
            return result
        result = None
        with self.paused():
            if seen.mode is Mode.AUDITED:
                before = {name: fingerprint(one) for name, one in tensors.items()}
                result = run()
                changed, moves = seen.flow.launch(tensors, before)
                launch = replace(launch, changed=changed, only_moves_data=moves)
            elif seen.mode is Mode.UNDONE:
                given = [(one, one.detach().clone()) for one in tensors.values()]
                result = run()
                launch = replace(launch, only_moves_data=undo(given, []))
            elif not self.is_ablation:
                result = run()
        if kernel is not None and launch.compiled not in seen.facts and not self.is_ablation:
            seen.facts[str(launch.compiled)] = triton_facts(kernel)
        seen.add(launch)
        return result

    def call_function(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call an own function or operator. An ablation calls it too, and overwrites its results."""
        seen = self.seen
        captures = _is_capturing()
        named = {**{str(index): one for index, one in enumerate(args)}, **kwargs}
        tensors = dict(tensors_in(named)) if captures else self._with_kept(with_pointed_at(named))
        launch = Launch(name, tensors=_described(tensors))
        if seen.mode is Mode.UNDONE:
            with self.paused():
                given = [(one, one.detach().clone()) for one in tensors.values()]
            result = function(*args, **kwargs)
            with self.paused():
                seen.add(replace(launch, only_moves_data=undo(given, _made(result, tensors))))
            return result
        if captures or (seen.mode is not Mode.AUDITED and not self.is_ablation):
            result = function(*args, **kwargs)
            seen.flow.reached |= {storage_of(one) for one in [*tensors.values(), *_made(result, tensors)]}
            seen.add(launch)
            return result
        with self.paused():
            before = {where: fingerprint(one) for where, one in tensors.items()}
        result = function(*args, **kwargs)
        with self.paused():
            if self.is_ablation:
                seen.add(launch)
                return spoil_call(tensors, before, result, is_finite=seen.mode is Mode.SPOILED)
            changed, moves = seen.flow.launch(tensors, before, _made(result, tensors), has_numbers(result))
            seen.add(replace(launch, changed=changed, only_moves_data=moves))
        return result

    def _with_kept(self, passed: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that a function gets, and those that the module keeps as attributes, except parameters and
        buffers."""
        own = {} if self.module is None else vars(self.module)
        kept = tensors_in({f"self.{name}": one for name, one in own.items() if name not in MODULES_OWN})
        given = list(passed.values())
        return passed | {name: one for name, one in kept if not contains(given, one)}

    def call_operator(self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call any operator of torch, given as an ``OpOverload``."""
        if self.pauses:
            return operator(*args, **kwargs)
        seen, name = self.seen, operator._schema.name
        if operator.name() in self.own.operators:
            return self.call_function(name, operator, args, kwargs)
        launches = seen.count
        result = operator(*args, **kwargs)
        is_audit = seen.mode is Mode.AUDITED
        if _is_capturing():
            return result
        if name in UNINITIALISED_OPERATORS and (is_audit or self.is_ablation):
            with self.paused():
                spoil(result, is_finite=seen.mode is Mode.SPOILED)
        if is_audit:
            is_own = seen.count > launches and not name.startswith("aten::")
            given: dict[Any, Any] = dict(enumerate(args))
            seen.flow.operator(operator, given | dict(kwargs), result, is_own)
            if not operator.is_view and only_moves_data(name):
                seen.library_moves += name not in UNINITIALISED_OPERATORS
            elif not operator.is_view and not is_own:
                seen.library_ops += 1
                seen.library_work += work_of(operator, args, kwargs, result, self.products)
                with self.paused():
                    seen.flow.library_result(result)
        return result

    def replay_graph(self, replay: Callable[[], None]) -> None:
        """Replay a CUDA graph; skip it in an ablation."""
        self.seen.replays += 1
        if not self.is_ablation:
            replay()


def _is_capturing() -> bool:
    """Return whether a CUDA graph is captured. Then nothing may wait for the device or be added to the graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _described(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    return tuple(f"{name}: {str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for name, one in tensors.items())


def _made(result: Any, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors that a function returned and that were not its arguments."""
    return [one for _, one in tensors_in({"result": result}) if not contains(list(tensors.values()), one)]
