"""Hooks for launches of Triton kernels, calls of extensions, replays of CUDA graphs and operators of torch.

:func:`record_launches` installs the hooks for the duration of one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernel_coder.judge.runner.launches import ABLATIONS, Launch, Launches, Recorder
from kernel_coder.judge.runner.own_kernels import OwnKernels
from kernel_coder.judge.wire.messages import Mode
from kernel_coder.judge.wire.operator_mode import OperatorMode


@contextlib.contextmanager
def record_launches(
    own: OwnKernels, mode: Mode = Mode.PLAIN, products: bool = True, module: torch.nn.Module | None = None
) -> Iterator[Launches]:
    """Record launches of own Triton kernels, whether jitted, autotuned, interpreted or precompiled.

    Args:
        own: decides which kernels are the candidate's own.
        mode: PLAIN and PROFILED count launches. ABLATED skips own Triton kernels and CUDA graphs. It calls extension
            functions, but overwrites what they return or change with NaN; so it also destroys what they keep for later
            calls. SPOILED does the same with random numbers instead of NaN, because 0.0 times a number is 0.0 and 0.0
            times NaN is NaN. UNDONE runs own kernels and then overwrites what they wrote with their inputs, where sizes
            match. AUDITED observes what each launch changes; it reads the arguments a few times and copies none of
            them.
        products: whether products and convolutions of the library count as its work.
        module: the candidate's module. Extension functions may write to the tensors among its attributes.

    Raises:
        RuntimeError: launches of this candidate are being recorded already.

    A kernel that autotunes itself during an ablation keeps an arbitrary configuration, so ablate last.

        with record_launches(own) as seen:
            model(x)
        seen.count, seen.launches[0].kernel
    """
    if own.observer is not None:
        raise RuntimeError("launches are being recorded already")
    recorder = Recorder(own, mode, products, module)
    own.observer = recorder.call_function
    try:
        with contextlib.ExitStack() as stack:
            for hook in (_triton(recorder), _graphs(recorder)):
                stack.enter_context(hook)
            if mode is Mode.AUDITED or mode in ABLATIONS or own.operators:
                stack.enter_context(_Operators(recorder))
            if any(map(_is_composite, own.operators)):
                stack.enter_context(_CompositeOperators(recorder))
            yield recorder.seen
    finally:
        own.observer = None


@contextlib.contextmanager
def without_tuning() -> Iterator[None]:
    """Make autotuned Triton kernels take their first configuration.

    Interpreted kernels cannot be timed: Triton would raise an error about a missing driver.
    """
    from triton.runtime.autotuner import Autotuner

    original = Autotuner._bench
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
    try:
        yield
    finally:
        Autotuner._bench = original


@contextlib.contextmanager
def _triton(recorder: Recorder) -> Iterator[None]:
    """Replace the two functions with which every launch ends: ``run`` of a compiled kernel, and the interpreter's."""
    try:
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.interpreter import GridExecutor
    except ImportError:
        yield  # without Triton there are no Triton kernels
        return
    original = vars(CompiledKernel)["run"]
    if not isinstance(original, property) or original.fget is None:
        raise RuntimeError("this Triton launches kernels in another way than 3.6 to 3.9 do")
    launcher_of, interpreted = original.fget, GridExecutor.__call__
    own, seen = recorder.own, recorder.seen

    def run(kernel: Any) -> Any:
        launcher = launcher_of(kernel)  # loads the kernel; Triton reads the kernel's handle after this

        def launch(x: int, y: int, z: int, stream: Any, function: Any, packed: Any, *rest: Any) -> Any:
            # rest: the launch's metadata, two hooks, then the kernel's arguments
            if not _owns_compiled(own, kernel):
                seen.foreign += 1
                return launcher(x, y, z, stream, function, packed, *rest)
            names = list(getattr(getattr(kernel.src, "fn", None), "arg_names", ())) or None
            return recorder.launch_kernel(
                Launch(_source_name(kernel), kernel.name, kernel.hash, (x, y, z)),
                _named(names, rest[3:]),
                lambda: launcher(x, y, z, stream, function, packed, *rest),
                kernel,
            )

        return launch

    def interpret(executor: Any, *args: Any, **kwargs: Any) -> Any:
        if not own.owns(executor.fn):
            seen.foreign += 1
            return interpreted(executor, *args, **kwargs)
        arguments = _named(executor.arg_names, args) | kwargs
        grid = executor.grid if isinstance(executor.grid, tuple) else ()
        launch = Launch(executor.fn.__name__, grid=tuple(grid))
        return recorder.launch_kernel(launch, arguments, lambda: interpreted(executor, *args, **kwargs))

    # Python looks up a property and __call__ on the class only.
    CompiledKernel.run = property(run)
    GridExecutor.__call__ = interpret
    try:
        yield
    finally:
        CompiledKernel.run = original
        GridExecutor.__call__ = interpreted


def _owns_compiled(own: OwnKernels, kernel: Any) -> bool:
    function = getattr(kernel.src, "fn", None)
    # Without a function the kernel was compiled from IR or PTX text. Libraries do not do that through Triton.
    return function is None or own.owns(function)


def _source_name(kernel: Any) -> str:
    function = getattr(kernel.src, "fn", None)
    return str(getattr(function, "__name__", kernel.name))


def _named(names: list[str] | None, values: Iterable[Any]) -> dict[str, Any]:
    """Return the values by name, or by position if there are too few names."""
    values = list(values)
    if names is None or len(names) < len(values):
        names = [str(index) for index in range(len(values))]
    return dict(zip(names, values, strict=False))


@contextlib.contextmanager
def _graphs(recorder: Recorder) -> Iterator[None]:
    """Replace ``torch.cuda.CUDAGraph.replay``."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    replay = getattr(graph, "replay", None)
    if graph is None or replay is None:
        yield
        return
    is_own_attribute = "replay" in vars(graph)  # else the class inherits it
    graph.replay = lambda one: recorder.replay_graph(lambda: replay(one))
    try:
        yield
    finally:
        if is_own_attribute:
            graph.replay = replay
        else:
            del graph.replay


class _Operators(OperatorMode):
    """Passes every operator of torch that runs to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.recorder.call_operator(func, args, kwargs or {})


class _CompositeOperators(TorchFunctionMode):
    """Intercepts the composite operators of a library that the candidate built.

    ``m.def("name", &function)`` makes such an operator: one kernel for every device and for autograd. Below it
    :class:`_Operators` sees only the operators that the function calls.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

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
        own = self.recorder.own.operators
        if self.recorder.pauses or not any(name in own and _is_composite(name) for name in names):
            return func(*args, **kwargs)
        return self.recorder.call_function(names[0].partition(".")[0], func, args, kwargs)


def _is_composite(operator: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CompositeImplicitAutograd")
