"""Runs Inductor on a PyTorch module without a GPU, and returns its Triton source.

The module's tensors become fake CUDA tensors, and stubs replace the device's properties and Triton's driver with those
of an H100. The graph is lowered but not compiled. This uses private parts of torch, so untested releases of torch are
refused. It needs the package ``triton``, which can be installed without a GPU.
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
"""The torch releases with which this module is tested. It uses private interfaces, so others are refused."""

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
    """One argument of Inductor's ``call``: the Python expression for it, and its layout."""

    expression: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_input: bool


@dataclass(frozen=True, slots=True)
class Lowered:
    """Inductor's output for one module."""

    code: str
    arguments: tuple[Argument, ...]  # the arguments of ``call``, in order
    returns_tuple: bool  # whether ``forward`` returns a tuple or list


def check_versions() -> None:
    """Raises RuntimeError unless torch is a tested release and triton can be imported."""
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
    """Imports the modules that :func:`lower` needs. This takes seconds, so do it before forking."""
    check_versions()
    for name in ("compile_fx", "debug", "decomposition", "graph", "virtualized", "codegen.triton", "codegen.wrapper"):
        importlib.import_module(f"torch._inductor.{name}")
    importlib.import_module("torch.fx.experimental.proxy_tensor")


def lower(python_code: str, name: str) -> Lowered:
    """Lowers the module ``name`` in ``python_code`` (in KernelBook's style) and returns Inductor's source.

    The same source gives the same bytes on every machine with the same torch and triton. ``python_code`` is executed,
    so it must be trusted.

    Raises:
        RuntimeError: torch is untested or triton is missing.
        ValueError: the module is not in KernelBook's style or cannot be lowered.
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
        """Replaces functions by aten ops: in a torch without CUDA, the built-in ones fail for lack of a CUDA guard."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return spelled_out.get(func, func)(*args, **(kwargs or {}))

    try:
        with SpellOut():
            code = _lower_function(forward, [*state.values(), *inputs])
    except Exception as error:  # the module and Inductor can raise anything
        first = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(
            f"Inductor cannot lower {name} without a GPU: {type(error).__name__}: {first[:160]}"
        ) from error
    return Lowered(code, tuple(arguments), returns_tuple)


def _index(x: torch.Tensor, key: Any) -> torch.Tensor:
    """Compute ``x[key]`` with aten ops, for integers, slices, None, Ellipsis and tensors."""
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
    # Nothing is compiled, so compile_threads is 1: more would start processes that import torch.
    settings = {"graph_partition": False, "fx_graph_cache": False, "layout_optimization": False, "compile_threads": 1}
    with _pretend_h100(), mode, torch.no_grad(), config.patch(settings):
        functional = torch.func.functionalize(function, remove="mutations")
        graph = make_fx(functional, decomposition_table=select_decomp_table(), tracing_mode="real")(*fakes)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        for node in graph.graph.nodes:  # Inductor names kernels after original_aten
            if isinstance(node.target, torch._ops.OpOverload):
                node.meta.setdefault("original_aten", node.target)
        with V.set_fake_mode(mode):
            compile_fx._recursive_post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(graph, example_inputs=fakes, shape_env=mode.shape_env, is_inference=True)
            with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
                lowering.run(*fakes)
                wrapper, _ = lowering.codegen()
    # Remove the only part that depends on this machine: the kernel's path in the cache.
    return re.sub(r"^# kernel path: .*\n", "", wrapper.value, flags=re.MULTILINE)


@contextlib.contextmanager
def _pretend_h100() -> Iterator[None]:
    """Stubs all functions with which Inductor queries the device, so that they describe an H100. Does not use CUDA."""
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
    # Clear these caches before and after, so that values of the real and the stubbed device are not mixed.
    caches = (torch_triton.has_triton, DeviceProperties.create)
    with contextlib.ExitStack() as stack:
        for key, value in torch_cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, key, value))
        for key, value in interface.items():
            stack.enter_context(mock.patch.object(CudaInterface, key, staticmethod(value)))
        stack.enter_context(mock.patch.object(CudaInterface.Worker, "get_device_properties", staticmethod(properties)))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        stack.enter_context(mock.patch.object(driver, "_active", target, create=True))
        # The backend hash depends on the installation and the machine; a constant gives the same output everywhere.
        stack.enter_context(mock.patch.object(torch_triton, "triton_hash_with_backend", return_value="0" * 64))
        for cache in caches:
            cache.cache_clear()
        try:
            yield
        finally:
            for cache in caches:
                cache.cache_clear()


def _attribute(key: str) -> str:
    """Return the Python expression for a tensor with this name in the state dict; numbers become list indices.

    >>> _attribute("network.0.weight"), _attribute("gains.1")
    ('self.network[0].weight', 'self.gains[1]')
    """
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"self.{key}")
