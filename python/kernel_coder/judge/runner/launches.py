"""Whose kernels ran: launches seen as they are made, and what share of a device's time was in a candidate's own.

Own is what the candidate's file defines: its ``triton.jit`` functions, and the functions of extension modules that it
builds with ``torch.utils.cpp_extension``. A library's kernels are not own, whoever launches them.

This runs in the candidate's process, so it convicts and never acquits: what it does not see does not count.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_coder.judge.runner.kernel_facts import KernelFacts, kernels_in, spellings, triton_facts
from kernel_coder.judge.wire.messages import Mode

ABLATIONS = frozenset({Mode.ABLATED, Mode.SPOILED})
"""Modes in which own kernels do nothing."""

KEPT = 4096
"""Launches of which more than their number is kept."""

_CHUNK = 1 << 22


# ---- what was launched -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of an own kernel, or one call of an own extension function.

    Attributes:
        kernel: the function's name in the source.
        compiled: its name on the device, as profilers report it; None if it was interpreted or is an extension's.
        hash: of the compiled kernel.
        grid: of a kernel; empty for a function.
        tensors: its tensor arguments: ``("x: float32 [4, 8]", ...)``.
        changed: names of those that it changed, and ``result`` for what it returned; None unless audited.
        only_moves_data: everything it changed or returned is a copy of something that was there, one value repeated, or
            nothing; None unless audited.
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
    """What was seen while it was looked.

    Attributes:
        mode: what was done with the launches.
        count: launches of own kernels.
        moving: those that only moved data; of an audit. Those that were undone, where they are.
        foreign: launches of Triton kernels that are not own.
        replays: CUDA graphs replayed. Their kernels show in a profile only; in an ablation they were left out.
        library_ops: operators of torch that computed something; of an audit. Views, allocations, copies and fills are
            left aside.
        small: launches that computed one element, or one number that a function returned; of an audit. A sum does
            that, and so does a probe.
        launches: the first :data:`KEPT` of them.
        by_name: launches by the kernel's name on the device.
        facts: of the compiled kernels among them.
    """

    mode: Mode
    count: int = 0
    moving: int = 0
    foreign: int = 0
    replays: int = 0
    library_ops: int = 0
    launches: list[Launch] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    facts: dict[str, KernelFacts] = field(default_factory=dict)

    _reached: set[int] = field(default_factory=set)
    _small: list[set[int]] = field(default_factory=list)  # of each, where its elements are
    _numbers: set[int] = field(default_factory=set)  # where elements were that were read; below 0: what was returned
    _made_of_numbers: set[int] = field(default_factory=set)

    @property
    def small(self) -> int:
        return len(self._small)

    def reaches(self, tensor: Tensor) -> bool:
        """Whether data of own kernels is in a tensor; of an audit. A decision that depends on it is no data.

        What a CUDA graph wrote, nobody has seen: it counts. So does all that comes after a number of theirs was read.
        """
        return self.replays > 0 or bool(self._numbers) or _storage(tensor) in self._reached

    def forgive(self, outputs: Iterable[Tensor]) -> None:
        """Small launches are no probes if they wrote all elements of an output, or all numbers that it was made of, or
        if the output is one number that has data of theirs."""
        for output in outputs:
            if output.numel() == 1 and _storage(output) in self._reached - self._made_of_numbers:
                self._small.clear()
            memory = _memory(output)
            places = {place for small in self._small for place in small if place in memory}
            if _storage(output) in self._made_of_numbers:
                places |= self._numbers
            if len(places) >= output.numel() > 0:
                self._small = [small for small in self._small if not small & places]

    def _add(self, launch: Launch) -> None:
        self.count += 1
        self.moving += bool(launch.only_moves_data)
        if launch.compiled is not None:
            self.by_name[launch.compiled] = self.by_name.get(launch.compiled, 0) + 1
        if len(self.launches) < KEPT:
            self.launches.append(launch)


class OwnKernels:
    """What of all that runs is the candidate's, found from its file.

    Call :meth:`watch_extensions` before the candidate is imported, so that the modules it builds are seen.

    Args:
        file: the candidate's.
        module: the name it is imported under.
    """

    def __init__(self, file: str | os.PathLike[str], module: str = "candidate") -> None:
        self.file = os.path.realpath(file)
        self.module = module
        self.libraries: list[str] = []
        """Shared libraries that the candidate built."""
        self.operators: set[str] = set()
        """Operators that those registered with torch: ``my_library::my_op``."""
        self._looking: _Looking | None = None
        self._compiled: set[str] = set()

    def owns(self, function: Any) -> bool:
        """Whether a Python function, or what a decorator made of it, is defined in the candidate's file."""
        while not hasattr(function, "__code__"):
            inner = getattr(function, "fn", None)
            if inner is None:
                return False
            function = inner
        file = function.__code__.co_filename
        if os.path.realpath(file) == self.file:
            return True
        # Code that was made at run time has no file of its own.
        return function.__module__ == self.module and not os.path.exists(file)

    @contextlib.contextmanager
    def watch_extensions(self) -> Iterator[None]:
        """What ``load`` and ``load_inline`` build meanwhile is own, and its functions can be watched from then on."""
        from torch.utils import cpp_extension

        originals = {name: getattr(cpp_extension, name) for name in ("load", "load_inline")}
        for name, original in originals.items():
            setattr(cpp_extension, name, functools.wraps(original)(functools.partial(self._load, original)))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(cpp_extension, name, original)

    def _load(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, loaded_before = _operators(), set(torch.ops.loaded_libraries)
        module = original(*args, **kwargs)
        self.operators |= _operators() - before
        self.libraries += sorted(set(torch.ops.loaded_libraries) - loaded_before)
        if isinstance(module, ModuleType):
            self.watch_module(module)
        return module

    def watch_module(self, module: ModuleType) -> None:
        """Take a compiled module as own: its functions, and its classes' methods."""
        if getattr(module, "__file__", None):
            self.libraries.append(str(module.__file__))
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType):
                if value.__name__.startswith(f"{module.__name__}."):
                    self.watch_module(value)
                continue
            if name.startswith("__"):
                continue
            if isinstance(value, type):
                for method, function in list(vars(value).items()):
                    if callable(function) and (method == "__call__" or not method.startswith("__")):
                        with contextlib.suppress(AttributeError, TypeError):
                            setattr(value, method, self.watched(f"{name}.{method}", function))
            elif callable(value):
                setattr(module, name, self.watched(name, value))

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of an extension whose calls count as launches."""

        def call(*args: Any, **kwargs: Any) -> Any:
            looking = self._looking
            if looking is None:
                return function(*args, **kwargs)
            return looking.call_function(name, function, args, kwargs)

        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(call, function)
        return call

    def kernel_names(self) -> frozenset[str]:
        """Names that own kernels may have in a profile.

        Of the Triton kernels that were seen in a launch, or were compiled and are global in the candidate's module, and
        of every kernel in the libraries built.
        """
        names = set(self._compiled)
        for value in list(vars(sys.modules.get(self.module, object)).values()):
            names |= _compiled_names(value) if self.owns(value) else set()
        for library in dict.fromkeys(self.libraries):
            names |= kernels_in(library)
        return frozenset(spelling for name in names for spelling in spellings(name))


def _compiled_names(function: Any) -> set[str]:
    """Of a jitted function, under whatever decorators."""
    while not hasattr(function, "device_caches") and hasattr(function, "fn"):
        function = function.fn
    caches = getattr(function, "device_caches", {})
    return {str(kernel.name) for cache, *_ in caches.values() for kernel in cache.values() if hasattr(kernel, "name")}


def _operators() -> set[str]:
    return set(torch._C._dispatch_get_all_op_names())


@contextlib.contextmanager
def record_launches(own: OwnKernels, mode: Mode = Mode.PLAIN) -> Iterator[Launches]:
    """Look at own launches, from whatever path of Triton they come: jitted, autotuned, interpreted, precompiled.

    Args:
        own: whose.
        mode: PLAIN and PROFILED count. ABLATED leaves out own Triton kernels and CUDA graphs, and calls extension
            functions but overwrites what they return or change, with NaN; what they keep for later calls is lost with
            it. SPOILED does so with random numbers, which times 0.0 are nothing, where NaN is NaN. UNDONE has them run
            and replaces what they wrote by what they were given, where that is as large. AUDITED looks at what each
            launch changes, which takes a few reads of its arguments and no copy of them.

    A kernel that autotunes itself while ablated keeps an arbitrary configuration: ablate last.

        with record_launches(own) as seen:
            model(x)
        seen.count, seen.launches[0].kernel
    """
    if own._looking is not None:
        raise RuntimeError("launches are being recorded already")
    looking = _Looking(own, Launches(mode))
    own._looking = looking
    try:
        with contextlib.ExitStack() as stack:
            for hook in (looking.triton_hooks(), looking.graph_hook()):
                stack.enter_context(hook)
            if mode is Mode.AUDITED or mode in ABLATIONS or own.operators:
                stack.enter_context(_Operators(looking))
            if any(map(_is_composite, own.operators)):
                stack.enter_context(_CompositeOperators(looking))
            yield looking.seen
    finally:
        own._looking = None


@contextlib.contextmanager
def without_tuning() -> Iterator[None]:
    """Autotuned kernels of Triton take their first configuration.

    Where kernels are interpreted there is nothing to time them by, and Triton raises an error about drivers.
    """
    from triton.runtime.autotuner import Autotuner

    original = Autotuner._bench
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
    try:
        yield
    finally:
        Autotuner._bench = original


class _Looking:
    """The work of one `record_launches`."""

    def __init__(self, own: OwnKernels, seen: Launches) -> None:
        self.own, self.seen = own, seen
        self.results: set[tuple[int, int]] = set()  # contents of what library operators computed
        self.pauses = 0  # > 0: torch's operators are ours
        self.fresh: set[int] = set()  # storages written by own kernels within the operator that runs

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pauses += 1
        try:
            with torch.no_grad():
                yield
        finally:
            self.pauses -= 1

    # -- Triton

    @contextlib.contextmanager
    def triton_hooks(self) -> Iterator[None]:
        """Under every launch path: where a compiled kernel hands out what launches it, and the interpreter's own."""
        try:
            from triton.compiler.compiler import CompiledKernel
            from triton.runtime.interpreter import GridExecutor
        except ImportError:
            yield  # without Triton there are no Triton kernels
            return
        launcher = vars(CompiledKernel)["run"]
        if not isinstance(launcher, property) or launcher.fget is None:
            raise RuntimeError("this Triton launches kernels in another way than 3.6 to 3.9 do")
        handed_out, interpreted = launcher.fget, GridExecutor.__call__

        def run(kernel: Any) -> Any:
            started = handed_out(kernel)  # loads the kernel, whose handle the caller reads next

            def launch(x: int, y: int, z: int, stream: Any, function: Any, packed: Any, *rest: Any) -> Any:
                # rest: the launch's metadata, two hooks, then the kernel's arguments
                if not self._owns_compiled(kernel):
                    self.seen.foreign += 1
                    return started(x, y, z, stream, function, packed, *rest)
                names = list(getattr(getattr(kernel.src, "fn", None), "arg_names", ())) or None
                return self._kernel(
                    Launch(_source_name(kernel), kernel.name, kernel.hash, (x, y, z)),
                    _named(names, rest[3:]),
                    lambda: started(x, y, z, stream, function, packed, *rest),
                    kernel,
                )

            return launch

        def interpret(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.own.owns(executor.fn):
                self.seen.foreign += 1
                return interpreted(executor, *args, **kwargs)
            given = _named(executor.arg_names, args) | kwargs
            grid = executor.grid if isinstance(executor.grid, tuple) else ()
            launch = Launch(executor.fn.__name__, grid=tuple(grid))
            return self._kernel(launch, given, lambda: interpreted(executor, *args, **kwargs))

        # A property is found on the class only, so both are replaced there.
        CompiledKernel.run = property(run)
        GridExecutor.__call__ = interpret
        try:
            yield
        finally:
            CompiledKernel.run = launcher
            GridExecutor.__call__ = interpreted

    def _owns_compiled(self, kernel: Any) -> bool:
        function = getattr(kernel.src, "fn", None)
        # Without a function the kernel was compiled from IR or PTX text. Libraries do not do that through Triton.
        return function is None or self.own.owns(function)

    def _kernel(
        self, launch: Launch, arguments: Mapping[str, Any], run: Callable[[], Any], kernel: Any | None = None
    ) -> Any:
        tensors = dict(_tensors(arguments))
        if launch.compiled is not None:
            self.own._compiled.add(launch.compiled)
        changes: dict[str, Any] = {"tensors": tuple(_described(name, one) for name, one in tensors.items())}
        result = None
        with self.paused():
            if self.seen.mode is Mode.AUDITED:
                before = {name: fingerprint(one) for name, one in tensors.items()}
                result = run()
                changes |= self._moved(tensors, before, [])
            elif self.seen.mode is Mode.UNDONE:
                given = [(one, one.detach().clone()) for one in tensors.values()]
                result = run()
                changes |= {"only_moves_data": _undo(given, [])}
            elif self.seen.mode not in ABLATIONS:
                result = run()
        if kernel is not None and launch.compiled not in self.seen.facts and self.seen.mode not in ABLATIONS:
            self.seen.facts[str(launch.compiled)] = triton_facts(kernel)
        self.seen._add(_with(launch, **changes))
        return result

    # -- extensions

    def call_function(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call it as the mode wants it."""
        tensors = dict(_tensors({**{str(i): one for i, one in enumerate(args)}, **kwargs}))
        launch = Launch(name, tensors=tuple(_described(where, one) for where, one in tensors.items()))
        if self.seen.mode is Mode.UNDONE:
            with self.paused():
                given = [(one, one.detach().clone()) for one in tensors.values()]
            result = function(*args, **kwargs)
            with self.paused():
                made = [one for _, one in _tensors({"": result}) if not any(one is own for own in tensors.values())]
                self.seen._add(_with(launch, only_moves_data=_undo(given, made)))
            return result
        if self.seen.mode is not Mode.AUDITED and self.seen.mode not in ABLATIONS:
            self.seen._add(launch)
            return function(*args, **kwargs)
        with self.paused():
            before = {where: fingerprint(one) for where, one in tensors.items()}
        result = function(*args, **kwargs)
        with self.paused():
            if self.seen.mode in ABLATIONS:
                self.seen._add(launch)
                return self._poisoned(tensors, before, result)
            made = [
                one for _, one in _tensors({"result": result}) if not any(one is given for given in tensors.values())
            ]
            self.seen._add(_with(launch, **self._moved(tensors, before, made, _has_numbers(result))))
        return result

    def _poisoned(self, tensors: Mapping[str, Tensor], before: Mapping[str, tuple[int, int]], result: Any) -> Any:
        untouched = set()
        for name, one in tensors.items():
            if fingerprint(one) != before[name]:
                self.poison(one)
            else:
                untouched.add(_storage(one))

        def overwritten(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.poison(torch.empty_like(value) if _storage(value) in untouched else value)
            if isinstance(value, float):
                return float("nan") if self.seen.mode is Mode.ABLATED else value + random.uniform(1.0, 2.0)
            if isinstance(value, int) and not isinstance(value, bool):
                return ~value
            if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
                return type(value)(overwritten(one) for one in value)
            if isinstance(value, dict):
                return {key: overwritten(one) for key, one in value.items()}
            return value

        return overwritten(result)

    def poison(self, tensor: Tensor) -> Tensor:
        return _poison(tensor, is_finite=self.seen.mode is Mode.SPOILED)

    # -- what a launch did

    def _moved(
        self,
        tensors: Mapping[str, Tensor],
        before: Mapping[str, tuple[int, int]],
        made: list[Tensor],
        has_numbers: bool = False,
    ) -> dict[str, Any]:
        after = {name: fingerprint(one) for name, one in tensors.items()}
        changed = {name: one for name, one in tensors.items() if after[name] != before[name]}
        kept = [one for name, one in tensors.items() if name not in changed]
        there = set(before.values()) | self.results
        new = list(changed.values()) + made
        contents = [after[name] for name in changed] + [fingerprint(one) for one in made]
        moves = not has_numbers and all(
            content in there or is_one_value(one) or any(is_cast_of(one, content, source) for source in kept)
            for one, content in zip(new, contents, strict=True)
        )
        written = {_storage(one) for one in new}
        self.seen._reached |= written
        self.fresh |= written
        if not moves and all(one.numel() <= 1 for one in new):
            places = {one.data_ptr() for one in new}
            if has_numbers:
                places.add(~len(self.seen._numbers))
            self.seen._small.append(places)
        if has_numbers:
            self.seen._numbers.add(~len(self.seen._numbers))
        names = tuple(changed) + (("result",) if made else ())
        return {"changed": names, "only_moves_data": moves}

    # -- CUDA graphs

    @contextlib.contextmanager
    def graph_hook(self) -> Iterator[None]:
        graph = getattr(torch.cuda, "CUDAGraph", None)
        replay = getattr(graph, "replay", None)
        if graph is None or replay is None:
            yield
            return

        def replayed(one: Any) -> Any:
            self.seen.replays += 1
            return None if self.seen.mode in ABLATIONS else replay(one)

        had = "replay" in vars(graph)
        graph.replay = replayed
        try:
            yield
        finally:
            if had:
                graph.replay = replay
            else:
                del graph.replay

    def library_result(self, result: Any) -> None:
        self.seen.library_ops += 1
        with self.paused():
            self.results |= {fingerprint(one) for _, one in _tensors({"": result})}

    def follow(self, func: Any, given: Mapping[str, Any], result: Any, is_own: bool) -> None:
        """Data of own kernels goes from an operator's inputs to what it returns and to what it writes to.

        `is_own`: own kernels were launched in it, though it is none of torch's. They are in what comes out.
        """
        reached, inputs = self.seen._reached, [one for _, one in _tensors(given)]
        has_some = is_own or any(_storage(one) in reached for one in inputs)
        for _, one in _tensors({"": result}):
            if has_some:
                reached.add(_storage(one))
            elif _storage(one) not in self.fresh and not any(one is given for given in inputs):
                self._forget(one)
        if has_some:
            reached |= {_storage(one) for one in _written(func, given)}
        name, made = func._schema.name, self.seen._made_of_numbers
        if name == "aten::_local_scalar_dense" and has_some and inputs[0].dtype != torch.bool:
            self.seen._numbers.add(inputs[0].data_ptr())
        is_fresh = name == "aten::lift_fresh" and bool(self.seen._numbers)  # as in torch.tensor
        if is_fresh or (_only_moves(name) and any(_storage(one) in made for one in inputs)):
            made |= {_storage(one) for _, one in _tensors({"": result})}
        self.fresh.clear()

    def _forget(self, tensor: Tensor) -> None:
        """What was known of its memory, which another tensor had before."""
        self.seen._reached.discard(_storage(tensor))
        self.seen._made_of_numbers.discard(_storage(tensor))
        memory = _memory(tensor)
        for places in self.seen._small:
            places.difference_update([place for place in places if place in memory])


def _undo(given: list[tuple[Tensor, Tensor]], made: list[Tensor]) -> bool:
    """Put what a launch was given in place of what it wrote: of that which is as large, what is nearest to it. Whether
    there was anything.

    Args:
        given: its tensors, and what was in them.
        made: tensors that it returned.
    """
    changed = [one for one, before in given if not torch.equal(_bytes(one), _bytes(before))]
    sources = [before for one, before in given if before.is_floating_point() and not any(one is new for new in changed)]
    is_undone = False
    for one in [*changed, *made]:
        own = [before for mine, before in given if mine is one]
        there = [source for source in sources if source.numel() == one.numel() > 1] or own
        if there and one.is_floating_point():
            with contextlib.suppress(RuntimeError):  # memory that several elements share
                one.detach().copy_(min(there, key=lambda source: _distance(one, source)).reshape(one.shape))
                is_undone = True
    return is_undone


def _distance(one: Tensor, other: Tensor) -> float:
    """Between some of their elements; infinite if that is no number."""
    step = max(1, one.numel() // 4096)
    mine, others = (some.detach().reshape(-1)[::step].double() for some in (one, other))
    found = float((mine - others).abs().mean())
    return found if found == found else float("inf")


class _Operators(TorchDispatchMode):
    """Sees operators of torch: a library's are counted, those of an own library are launches."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler with the first operator, which takes seconds

    def __init__(self, looking: _Looking) -> None:
        super().__init__()
        self.looking = looking

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        looking, kwargs = self.looking, kwargs or {}
        if looking.pauses:
            return func(*args, **kwargs)
        name = func._schema.name
        if func.name() in looking.own.operators:
            return looking.call_function(name, func, args, kwargs)
        launches = looking.seen.count
        result = func(*args, **kwargs)
        if name in _UNWRITTEN and looking.seen.mode in {Mode.AUDITED, *ABLATIONS}:
            with looking.paused():
                looking.poison(result)
        if looking.seen.mode is Mode.AUDITED:
            is_own = looking.seen.count > launches and not name.startswith("aten::")
            given: dict[Any, Any] = dict(enumerate(args))
            looking.follow(func, given | dict(kwargs), result, is_own)
        if looking.seen.mode is Mode.AUDITED and not func.is_view and not _only_moves(name):
            looking.library_result(result)
        return result


class _CompositeOperators(TorchFunctionMode):
    """Sees operators of an own library that have one kernel for every device and for autograd.

    Of those, which a library gets by ``m.def("name", &function)``, :class:`_Operators` sees what they call only.
    """

    def __init__(self, looking: _Looking) -> None:
        super().__init__()
        self.looking = looking

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverloadPacket):
            names = [f"{func._qualified_op_name}.{overload}".removesuffix(".default") for overload in func.overloads()]
        elif isinstance(func, torch._ops.OpOverload):
            names = [func.name()]
        else:
            return func(*args, **kwargs)
        if self.looking.pauses or not any(name in self.looking.own.operators and _is_composite(name) for name in names):
            return func(*args, **kwargs)
        return self.looking.call_function(names[0].partition(".")[0], func, args, kwargs)


def _is_composite(operator: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CompositeImplicitAutograd")


#: Operators that allocate, fill, copy or read, and compute nothing.
_MOVES = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full zeros zeros_like
ones ones_like full full_like scalar_tensor arange fill fill_ zero_ copy copy_ _to_copy clone contiguous lift_fresh
lift_fresh_copy detach alias cat stack repeat _reshape_copy _unsafe_view constant_pad_nd set_ resize_ resize_as_
_local_scalar_dense record_stream _pin_memory is_pinned
"""
_MOVING_OPERATORS = frozenset(_MOVES.split())


_UNWRITTEN = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
)
"""Memory that held an earlier call's result, mostly: where that is the same each time, it would look as if nobody had
written it, or as if it were right without anybody writing it."""


def _only_moves(operator: str) -> bool:
    return operator.removeprefix("aten::") in _MOVING_OPERATORS


def _with(launch: Launch, **changes: Any) -> Launch:
    values = {name: getattr(launch, name) for name in Launch.__dataclass_fields__}
    return Launch(**{**values, **changes})


def _source_name(kernel: Any) -> str:
    function = getattr(kernel.src, "fn", None)
    return str(getattr(function, "__name__", kernel.name))


def _named(names: list[str] | None, values: Iterable[Any]) -> dict[str, Any]:
    values = list(values)
    if names is None or len(names) < len(values):
        names = [str(index) for index in range(len(values))]
    return dict(zip(names, values, strict=False))


def _tensors(arguments: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors among arguments, in containers too, and under descriptors and reinterpretations of them."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield str(name), value
        elif isinstance(value, list | tuple):
            yield from _tensors({f"{name}[{index}]": one for index, one in enumerate(value)})
        elif isinstance(value, dict):
            yield from _tensors({f"{name}[{key!r}]": one for key, one in value.items()})
        elif isinstance(getattr(value, "base", None), Tensor):
            yield str(name), value.base


def _written(func: Any, given: Mapping[Any, Any]) -> list[Tensor]:
    """What an operator writes to of what it is given, as its schema says."""
    where = [*enumerate(func._schema.arguments), *((one.name, one) for one in func._schema.arguments)]
    changed = {name: given[name] for name, one in where if name in given and one.is_write}
    return [one for _, one in _tensors(changed)]


def _has_numbers(value: Any) -> bool:
    """Whether a function returned a number, or several."""
    if isinstance(value, dict):
        return any(map(_has_numbers, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _described(name: str, tensor: Tensor) -> str:
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _memory(tensor: Tensor) -> range:
    """Its storage's addresses."""
    return range(_storage(tensor), _storage(tensor) + tensor.untyped_storage().nbytes())


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # reshape keeps the stride of an expanded, an empty or a single element
        flat = flat.new_empty(flat.shape).copy_(flat)
    return flat.view(torch.uint8)


def fingerprint(tensor: Tensor) -> tuple[int, int]:
    """Number of bytes, and a hash of them in the order of the elements, whatever the layout and the dtype.

    >>> x = torch.arange(6.0)
    >>> fingerprint(x) == fingerprint(x.view(2, 3)), fingerprint(x) == fingerprint(x.view(2, 3).t())
    (True, False)
    """
    flat = _bytes(tensor)
    whole = flat.numel() // 8 * 8
    words = flat[:whole] if flat.storage_offset() % 8 == 0 else flat[:whole].clone()
    words = words.view(torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK]
        total += (part * _multipliers(start, part.numel(), flat.device)).sum()
    if whole < flat.numel():
        tail = flat[whole:].to(torch.int64) + 1
        total += (tail * _multipliers(-8, tail.numel(), flat.device)).sum()
    return flat.numel(), int(total)


def _multipliers(start: int, size: int, device: torch.device) -> Tensor:
    """Odd numbers that look random, each a function of its place (a round of SplitMix64, shifts being signed here)."""
    mixed = torch.arange(start, start + size, dtype=torch.int64, device=device) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47
    return (mixed ^ (mixed >> 27)) | 1


def is_one_value(tensor: Tensor) -> bool:
    """Two elements or more, all of the same bits. (Of one alone nobody knows: it may be a sum.)

    >>> [is_one_value(one) for one in (torch.full((2, 2), float("nan")), torch.tensor([0.0, -0.0]), torch.ones(1))]
    [True, False, False]
    """
    if tensor.numel() < 2:
        return tensor.numel() == 0
    rows = _bytes(tensor).view(tensor.numel(), -1)
    return bool((rows == rows[0]).all())


def is_cast_of(tensor: Tensor, content: tuple[int, int], source: Tensor) -> bool:
    """Whether it is the source in another dtype; `content` is its fingerprint."""
    if source.numel() != tensor.numel() or source.dtype == tensor.dtype or tensor.numel() < 2:
        return False
    return fingerprint(source.detach().to(tensor.dtype)) == content


def warm_audit(tensor: Tensor) -> None:
    """What an audit asks of tensors, once, of a few numbers on a device: it loads its kernels when they are first used.

    >>> warm_audit(torch.zeros(2))
    """
    content = fingerprint(tensor)
    is_one_value(tensor)
    is_cast_of(tensor, content, tensor.to(torch.float16))


def _poison(tensor: Tensor, is_finite: bool = False) -> Tensor:
    """Other values than before, in place where that is possible: NaN, or random numbers if they have to be finite; or
    all bits turned."""
    if tensor.numel() == 0:
        return tensor
    values = tensor.detach()
    with contextlib.suppress(RuntimeError):  # memory that several elements share
        if values.is_floating_point() or values.is_complex():
            values.normal_() if is_finite else values.fill_(float("nan"))
        elif values.dtype == torch.bool:
            values.logical_not_()
        else:
            values.bitwise_not_()
        return tensor
    return _poison(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), is_finite)


# ---- device time ---------------------------------------------------------------------------------------------------


class NoDeviceTime(Exception):
    """Nothing can be said about device time, which is never to be taken for a good sign."""


class KernelRecord(NamedTuple):
    """Something that a device did: a kernel, or a copy or fill that the driver does itself."""

    name: str
    start_ns: int
    duration_ns: int
    is_kernel: bool = True


class DeviceTime(NamedTuple):
    """Where a device's time went."""

    own_ns: int
    all_ns: int
    own_records: int
    records: int

    @property
    def share(self) -> float:
        return self.own_ns / self.all_ns


_NO_WORK = frozenset({"user_annotation", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event"})


def device_records(profile: Any) -> list[KernelRecord]:
    """What ``torch.profiler.profile`` saw on a CUDA device.

    Ranges that code names for itself (``record_function``) show on the device's timeline too, and are left out.
    """
    found = []
    for event in profile.events():
        if event.device_type.name != "CUDA" or getattr(event, "is_user_annotation", False):
            continue
        if getattr(event, "activity_type", None) in _NO_WORK:
            continue
        start, duration = event.time_range.start, event.time_range.elapsed_us()
        is_kernel = not event.name.startswith(("Memcpy ", "Memset "))
        found.append(KernelRecord(event.name, int(1000 * start), round(1000 * duration), is_kernel))
    return found


def kernel_share(
    records: Iterable[KernelRecord], own: Iterable[str], launched: Mapping[str, int] | None = None
) -> DeviceTime:
    """The part of the device's time in own kernels, by their exact names. Copies and fills are nobody's own.

    Args:
        records: of one or more calls.
        own: names of own kernels as :meth:`OwnKernels.kernel_names` gives them.
        launched: how often each Triton kernel was launched meanwhile (:attr:`Launches.by_name`), so that a library's
            kernel of the same name does not pass for it.

    Raises:
        NoDeviceTime: there are no records, they have no duration, or a name was recorded more often than launched.

    >>> records = [KernelRecord("fused", 0, 300), KernelRecord("gemm", 300, 600), KernelRecord("Memset", 900, 100)]
    >>> kernel_share(records, ["fused"]).share
    0.3
    """
    names, counts = set(own), dict.fromkeys(launched or (), 0)
    own_ns = all_ns = own_records = total = 0
    for record in records:
        if record.duration_ns < 0:
            raise NoDeviceTime(f"{record.name} was recorded with a negative duration")
        total += 1
        all_ns += record.duration_ns
        if record.is_kernel and record.name in names:
            own_ns += record.duration_ns
            own_records += 1
            if record.name in counts:
                counts[record.name] += 1
    if total == 0 or all_ns == 0:
        raise NoDeviceTime("the profiler recorded nothing on the device")
    for name, count in counts.items():
        if count > (launched or {})[name]:
            raise NoDeviceTime(f"{name} was recorded {count} times and launched {(launched or {})[name]} times")
    return DeviceTime(own_ns, all_ns, own_records, total)
