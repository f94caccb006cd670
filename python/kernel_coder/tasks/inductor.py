"""What Inductor makes of a PyTorch module, on a machine without a GPU.

The module's tensors become fake CUDA tensors, the device's properties and Triton's driver are stubbed with an H100's,
and the graph is lowered and printed but never compiled. That leans on private parts of torch, so a torch that was not
tested is refused. Needs the `triton` package (any machine can install it); nothing here is imported with the package.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from kernel_coder.tasks.task import init_arguments

if TYPE_CHECKING:
    import torch

TESTED_TORCH = ("2.13",)
"""The torch releases whose private interfaces this module was written against and is tested with."""

CAPABILITY = (9, 0)
_H100 = SimpleNamespace(
    name="NVIDIA H100",
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 * 2**30,
    L2_cache_size=50 * 2**20,
    shared_memory_per_block=48 * 2**10,
    shared_memory_per_block_optin=227 * 2**10,
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of Inductor's `call`: the Python expression it comes from, and its layout."""

    expression: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_input: bool


@dataclass(frozen=True, slots=True)
class Lowered:
    """Inductor's output for one module: its source, the arguments of `call` in order, and what `forward` returns."""

    code: str
    arguments: tuple[Argument, ...]
    returns_tuple: bool


def check_versions() -> None:
    """Raise RuntimeError, in one sentence, unless torch is a tested release and triton can be imported."""
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    if release not in TESTED_TORCH:
        raise RuntimeError(
            f"lowering through Inductor uses private parts of torch and was tested with {', '.join(TESTED_TORCH)}; "
            f"this is torch {torch.__version__}"
        )
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise RuntimeError("lowering through Inductor needs the triton package; pip install triton") from error


def import_inductor() -> None:
    """Import what :func:`lower` needs: seconds, for a process that forks for each module."""
    check_versions()
    for name in ("compile_fx", "debug", "decomposition", "graph", "virtualized", "codegen.triton", "codegen.wrapper"):
        importlib.import_module(f"torch._inductor.{name}")
    importlib.import_module("torch.fx.experimental.proxy_tensor")


def lower(python_code: str, name: str) -> Lowered:
    """Lower the module `name` that `python_code` defines (KernelBook's style) and return Inductor's source.

    The same text gives the same bytes on every machine with the same torch and triton. The code under `python_code` is
    executed, so it must be trusted. RuntimeError for an untested torch or a missing triton; ValueError if the module is
    not what the style asks for, or cannot be lowered.
    """
    check_versions()
    import torch

    namespace: dict[str, Any] = {}
    exec(compile(python_code, f"<{name}>", "exec"), namespace)
    missing = [key for key in (name, "get_inputs", "get_init_inputs") if key not in namespace]
    if missing:
        raise ValueError(f"python_code must define {', '.join(missing)}; it does not")
    args, kwargs = init_arguments(namespace["get_init_inputs"]())
    with torch.random.fork_rng(devices=[]):
        module: torch.nn.Module = namespace[name](*args, **kwargs).eval()
        inputs: list[Any] = namespace["get_inputs"]()
    if not all(isinstance(value, torch.Tensor) for value in inputs):
        raise ValueError(f"get_inputs of {name} must return tensors; got {[type(v).__name__ for v in inputs]}")

    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    parameters = list(inspect.signature(module.forward).parameters)
    arguments = [Argument(_attribute(key), tuple(t.shape), t.stride(), False) for key, t in state.items()]
    arguments += [Argument(key, tuple(t.shape), t.stride(), True) for key, t in zip(parameters, inputs, strict=False)]
    returns_tuple = False

    def forward(*flat: torch.Tensor) -> Any:
        nonlocal returns_tuple
        out = torch.func.functional_call(module, dict(zip(state, flat, strict=False)), flat[len(state) :])
        returns_tuple = isinstance(out, tuple | list)
        return out

    spelled_out: dict[Any, Callable[..., Any]] = {
        torch.Tensor.__getitem__: _index,
        torch.Tensor.__invert__: torch.ops.aten.bitwise_not.default,
        torch.Tensor.contiguous: lambda x: x.clone(memory_format=torch.contiguous_format),
    }

    class SpellOut(torch.overrides.TorchFunctionMode):
        """These as aten ops: where torch was built without CUDA, the built-in ones ask for a CUDA device guard."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return spelled_out.get(func, func)(*args, **(kwargs or {}))

    try:
        with SpellOut():
            code = _lower_function(forward, [*state.values(), *inputs])
    except Exception as error:  # whatever the module or Inductor raises on its way
        first = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(
            f"Inductor cannot lower {name} without a GPU: {type(error).__name__}: {first[:160]}"
        ) from error
    return Lowered(code, tuple(arguments), returns_tuple)


def _index(x: torch.Tensor, key: Any) -> torch.Tensor:
    """`x[key]` for integers, slices, None, Ellipsis and tensors, in aten ops."""
    import torch

    keys = list(key) if isinstance(key, tuple) else [key]
    if any(item is Ellipsis for item in keys):
        where = next(i for i, item in enumerate(keys) if item is Ellipsis)
        named = sum(item is not None and item is not Ellipsis for item in keys)
        keys[where : where + 1] = [slice(None)] * (x.dim() - named)
    gathered: list[torch.Tensor | None] = []
    dim = 0
    for item in keys:
        if isinstance(item, int):
            x = x.select(dim, item)
            continue
        if item is None:
            x = x.unsqueeze(dim)
        elif isinstance(item, slice) and item != slice(None):
            x = torch.ops.aten.slice.Tensor(x, dim, item.start, item.stop, item.step or 1)
        gathered.append(item if isinstance(item, torch.Tensor) else None)
        dim += 1
    return torch.ops.aten.index.Tensor(x, gathered) if any(i is not None for i in gathered) else x


def _lower_function(function: Any, example: Sequence[torch.Tensor]) -> str:
    import torch
    from torch._inductor import compile_fx, config
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())

    def on_cuda(tensor: torch.Tensor) -> FakeTensor:
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, meta, torch.device("cuda:0"))

    fakes = [on_cuda(tensor) for tensor in example]
    # Nothing is compiled, so no pool of compilers is started, each of which imports torch.
    settings = {"graph_partition": False, "fx_graph_cache": False, "layout_optimization": False, "compile_threads": 1}
    with _pretend_h100(), mode, torch.no_grad(), config.patch(settings):
        functional = torch.func.functionalize(function, remove="mutations")
        graph = make_fx(functional, decomposition_table=select_decomp_table(), tracing_mode="real")(*fakes)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        for node in graph.graph.nodes:  # kernels are named after these
            if isinstance(node.target, torch._ops.OpOverload):
                node.meta.setdefault("original_aten", node.target)
        with V.set_fake_mode(mode):
            compile_fx._recursive_post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(graph, example_inputs=fakes, shape_env=mode.shape_env, is_inference=True)
            with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
                lowering.run(*fakes)
                wrapper, _ = lowering.codegen()
    # The one part that names this machine: where the kernel would have been cached.
    return re.sub(r"^# kernel path: .*\n", "", wrapper.value, flags=re.MULTILINE)


@contextlib.contextmanager
def _pretend_h100() -> Iterator[None]:
    """Answer every question that Inductor asks about the device as an H100 would, without touching CUDA."""
    import torch
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils import _triton as torch_triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    def properties(device: Any = None) -> SimpleNamespace:
        return _H100

    def capability(device: Any = None) -> tuple[int, int]:
        return CAPABILITY

    torch_cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "is_bf16_supported": lambda *args, **kwargs: True,
    }
    interface: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_properties": properties,
    }
    target = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32),
        get_current_device=lambda: 0,
    )
    # What these remember of the real machine must not reach the pretended one, nor the other way round.
    caches = (torch_triton.has_triton, DeviceProperties.create)
    with contextlib.ExitStack() as stack:
        for key, value in torch_cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, key, value))
        for key, value in interface.items():
            stack.enter_context(mock.patch.object(CudaInterface, key, staticmethod(value)))
        stack.enter_context(mock.patch.object(CudaInterface.Worker, "get_device_properties", staticmethod(properties)))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        stack.enter_context(mock.patch.object(driver, "_active", target, create=True))
        # The backend hash covers triton's install and the machine; a constant keeps the output the same everywhere.
        stack.enter_context(mock.patch.object(torch_triton, "triton_hash_with_backend", return_value="0" * 64))
        for cache in caches:
            cache.cache_clear()
        try:
            yield
        finally:
            for cache in caches:
                cache.cache_clear()


def _attribute(key: str) -> str:
    """A tensor of the module, by its name in the state dict; members of a list have numbers.

    >>> _attribute("network.0.weight"), _attribute("gains.1")
    ('self.network[0].weight', 'self.gains[1]')
    """
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"self.{key}")
