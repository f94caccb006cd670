"""Runs an exported kernel: a module like its reference, a custom op, a fallback, and tuned block sizes.

``kernel-coder library export`` copies this file into the package that it writes. It needs torch and nothing of Kernel
Coder.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import os
import statistics
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

NAMESPACE = "kernel_coder_exports"
"""The namespace of the custom ops in ``torch.ops``."""

CACHE_VARIABLE = "KERNEL_CODER_CACHE"
"""The environment variable that names the folder for tuned block sizes; default: ``~/.cache/kernel_coder``."""

TUNE_VARIABLE = "KERNEL_CODER_TUNE"
"""The environment variable that switches tuning off, if it is 0."""

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 65536
"""Range of the block sizes that tuning tries, in elements. Triton allows 2**20, but registers do not suffice for
that."""

BLOCK_FACTORS = (0.25, 0.5, 2, 4, 8)
"""Factors by which tuning multiplies a block size."""

WARPS = (1, 2, 4, 8, 16)
"""Numbers of warps that tuning tries on a GPU."""

REPEATS = 5
"""Number of timed calls for each setting; the median counts."""


class KernelModule(nn.Module):
    """Base of every exported ``Kernel``; :func:`make_kernel` makes the class.

    Attributes:
        any_batch: also use the kernel if only the first size of inputs differs from the verified sizes. The judge
            checks one other batch size unless ``judge.hidden_shapes`` was switched off.
        tune: try other block sizes at the first call with new sizes, and keep the fastest ones on this device.
    """

    any_batch: bool
    tune: bool

    _twin: nn.Module
    _given: tuple[list[Any], dict[str, Any]]
    _usual: bool
    _names: list[str]
    _candidates: dict[torch.device, nn.Module]
    _settings: dict[str, Mapping[str, Mapping[str, int]]]
    _warned: set[str]
    _lock: threading.RLock
    _number: int
    _verified: dict[str, Any]
    _pattern: list[bool]
    _single: bool


def make_kernel(package: str, facts: Mapping[str, Any]) -> tuple[type[nn.Module], Any]:
    """Return the class ``Kernel`` of an exported package, and its custom op.

    Args:
        package: the import name of the package, which holds ``kernel`` and ``reference``.
        facts: ``name``, ``entry_point``, ``device`` and ``interpreted``, from the verdict.
    """
    reference = importlib.import_module(f"{package}.reference")
    base: type[nn.Module] = getattr(reference, facts["entry_point"])
    alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    name = f"{NAMESPACE}::{facts['name']}"

    def op(module: int, inputs: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        return alive[module]._run(inputs, state)

    # Evaluated here, because custom_op reads annotations that "from __future__ import annotations" keeps as text.
    op.__annotations__ = {
        "module": int,
        "inputs": list[Tensor],
        "state": list[Tensor],
        "return": list[Tensor],
    }
    custom = torch.library.custom_op(name, op, mutates_args=())

    @custom.register_fake
    def _(module: int, inputs: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            outputs = alive[module]._reference_outputs(inputs, state)
        return [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in outputs]

    def setup_context(ctx: Any, inputs: tuple[int, list[Tensor], list[Tensor]], output: list[Tensor]) -> None:
        ctx.module, tensors, state = inputs
        ctx.count = len(tensors)
        ctx.needed = [one.requires_grad for one in (*tensors, *state)]
        ctx.save_for_backward(*tensors, *state)

    def backward(ctx: Any, grads: list[Tensor | None]) -> tuple[None, list[Tensor | None], list[Tensor | None]]:
        with torch.enable_grad():
            tensors = [
                one.detach().requires_grad_(needed) for one, needed in zip(ctx.saved_tensors, ctx.needed, strict=True)
            ]
            outputs = alive[ctx.module]._reference_outputs(tensors[: ctx.count], tensors[ctx.count :])
            pairs = [
                (out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad and grad is not None
            ]
            wanted = [one for one in tensors if one.requires_grad]
            found = iter(
                torch.autograd.grad([out for out, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True)
                if pairs and wanted
                else [None] * len(wanted)
            )
        every = [next(found) if needed else None for needed in ctx.needed]
        return None, every[: ctx.count], every[ctx.count :]

    custom.register_autograd(backward, setup_context=setup_context)

    class Kernel(base, KernelModule):  # type: ignore[misc, valid-type]
        any_batch = False
        tune = os.environ.get(TUNE_VARIABLE, "1") != "0"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            verified = _init_arguments(reference.get_init_inputs())
            given = (list(args), kwargs) if args or kwargs else verified
            super().__init__(*given[0], **given[1])
            inside = self.__dict__  # not set as attributes, which would register the twin as a part of this module
            twin: nn.Module = copy.copy(self)  # the same parameters, with the reference's forward
            twin.__class__ = base
            inside["_twin"] = twin
            inside["_given"] = given
            inside["_usual"] = repr(given) == repr(verified)
            inside["_names"] = [key for key, _ in (*self.named_parameters(), *self.named_buffers())]
            inside["_candidates"] = {}
            inside["_settings"] = {}
            inside["_warned"] = set()
            inside["_lock"] = threading.RLock()
            inside["_number"] = len(_NUMBERS)
            _NUMBERS.append(facts["name"])
            inside["_verified"], inside["_pattern"], inside["_single"] = _shapes(reference, twin, inside["_names"])
            alive[inside["_number"]] = self

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            twin = Kernel(*copy.deepcopy(self._given[0]), **copy.deepcopy(self._given[1]))
            twin.load_state_dict(self.state_dict())
            return twin

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            plain = kwargs or [isinstance(one, Tensor) for one in args] != self._pattern
            if plain or (self.training and next(self.buffers(), None) is not None):
                # A module that updates its buffers, such as a batch norm in training, is no function of its inputs.
                self._warn("arguments", "these arguments, or training with buffers, are not what was verified")
                return super().forward(*args, **kwargs)
            tensors = [one for one in args if isinstance(one, Tensor)]
            state = [*self.parameters(), *self.buffers()]
            outputs = custom(self._number, tensors, state)
            return outputs[0] if self._single else tuple(outputs)

        def _warn(self, kind: str, reason: str) -> None:
            if not torch.compiler.is_compiling() and kind not in self._warned:
                self._warned.add(kind)
                warnings.warn(
                    f"{facts['name']} runs its PyTorch reference instead of its kernel: {reason}",
                    RuntimeWarning,
                    stacklevel=3,
                )

        # ---- inside of the op

        def _reference_outputs(self, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
            return _called(self._twin, self._names, inputs, state, self._static())

        def _static(self) -> list[Any]:
            """Return the arguments in the order of forward; TENSOR stands for a tensor."""
            return list(self._verified["static"])

        def _run(self, inputs: list[Tensor], state: list[Tensor]) -> list[Tensor]:
            problem = self.problem(inputs)
            if problem is not None:
                self._warn(*problem)
                outputs = self._reference_outputs(inputs, state)
            else:
                outputs = self._kernel_outputs(inputs, state)
            taken = {one.untyped_storage().data_ptr() for one in (*inputs, *state)}
            fresh: list[Tensor] = []
            for one in outputs:
                one = one.detach().contiguous()
                if one.untyped_storage().data_ptr() in taken:  # an op may not return its inputs
                    one = one.clone()
                taken.add(one.untyped_storage().data_ptr())
                fresh.append(one)
            return fresh

        def problem(self, inputs: Sequence[Tensor]) -> tuple[str, str] | None:
            """Return why the kernel cannot be used for these inputs: a kind (``device``, ``shape``) and a reason."""
            device = _device_problem(facts, inputs[0].device if inputs else torch.device("cpu"))
            if device is not None:
                return "device", device
            if not self._usual:
                return "shape", f"it was verified for other arguments of {facts['entry_point']}"
            for place, (one, (shape, dtype)) in enumerate(zip(inputs, self._verified["tensors"], strict=True)):
                sizes, known = list(one.shape), list(shape)
                if self.any_batch and sizes and known:
                    sizes, known = sizes[1:], known[1:]
                if one.dtype != dtype or one.dim() != len(shape) or sizes != known:
                    return "shape", (
                        f"it was verified for tensor {place} as {dtype} {list(shape)}; got {one.dtype} "
                        f"{list(one.shape)}"
                    )
            return None

        def _candidate(self, device: torch.device) -> nn.Module:
            """Return the verified module on this device. Its own parameters are never used."""
            with self._lock:
                if device not in self._candidates:
                    module = importlib.import_module(f"{package}.kernel")
                    _watch_kernels(module)
                    with torch.random.fork_rng(devices=[]):
                        made = module.ModelNew(*copy.deepcopy(self._given[0]), **copy.deepcopy(self._given[1]))
                    self._candidates[device] = made.to(device)
                return self._candidates[device]

        def _kernel_outputs(self, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
            inputs = [one.contiguous() for one in inputs]  # as the verified ones were
            device = inputs[0].device if inputs else torch.device("cpu")
            candidate = self._candidate(device)
            candidate.train(self.training)

            def run() -> list[Tensor]:
                return _called(candidate, self._names, [one.clone() for one in inputs], state, self._static())

            if not self.tune:
                return run()
            sizes = ",".join(f"{one.dtype}{list(one.shape)}" for one in inputs)
            key = f"{_device_name(device)} {sizes}"
            with self._lock:
                if key not in self._settings:
                    self._settings[key] = _tuned(package, key, run, device)
                with _Using(package, self._settings[key]):
                    return run()

    Kernel.__name__ = Kernel.__qualname__ = "Kernel"
    Kernel.__doc__ = (
        f"``{facts['entry_point']}`` of ``reference.py``, computed by the verified kernel in ``kernel.py``."
    )
    return Kernel, custom


TENSOR = object()
"""Stands for a tensor among the arguments of a module."""

_NUMBERS: list[str] = []
"""The name of each module that was made; its index is the module's number, which the op gets."""


def _init_arguments(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in a result of ``get_init_inputs``: positional ones, or a pair of positional ones and a
    dict."""
    if len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
        return list(given[0]), dict(given[1])
    return list(given), {}


def _shapes(reference: Any, twin: nn.Module, names: Sequence[str]) -> tuple[dict[str, Any], list[bool], bool]:
    """Return the verified inputs, which of them are tensors, and whether the output is a single tensor."""
    # Importing a kernel must not change the random numbers of the program.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                given = list(reference.get_inputs())
                state: dict[str, Tensor] = {key: mode.from_tensor(one) for key, one in _state(twin)}
                output = functional_call(twin, state, tuple(given))
        except Exception:  # a module that needs values, such as one with nonzero
            given = list(reference.get_inputs())
            output = copy.deepcopy(twin)(*given)
    tensors = [(tuple(one.shape), one.dtype) for one in given if isinstance(one, Tensor)]
    static = [TENSOR if isinstance(one, Tensor) else one for one in given]
    outputs = [output] if isinstance(output, Tensor) else output
    if not isinstance(outputs, (list, tuple)) or not all(isinstance(one, Tensor) for one in outputs):
        raise TypeError(f"the output must be a tensor, or a list or tuple of tensors; got {type(output).__name__}")
    pattern = [isinstance(one, Tensor) for one in given]
    return {"tensors": tensors, "static": static}, pattern, isinstance(output, Tensor)


def _state(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _called(
    module: nn.Module, names: Sequence[str], inputs: Sequence[Tensor], state: Sequence[Tensor], static: list[Any]
) -> list[Tensor]:
    """Return the outputs of the module with these parameters and buffers, as a list."""
    known = {key for key, _ in _state(module)}
    given = {key: one for key, one in zip(names, state, strict=True) if key in known}
    waiting = iter(inputs)
    arguments = [next(waiting) if one is TENSOR else one for one in static]
    output = functional_call(module, given, tuple(arguments))
    return [output] if isinstance(output, Tensor) else list(output)


# ---- devices


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _device_problem(facts: Mapping[str, Any], device: torch.device) -> str | None:
    """Return why the kernel cannot be used on this device; None if it was verified there."""
    if facts["interpreted"]:
        if device.type != "cpu":
            return f"it was verified by Triton's interpreter on the CPU, not on {_device_name(device)}"
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "it was verified by Triton's interpreter; set TRITON_INTERPRET=1 before importing triton to use it"
        return None
    if _device_name(device) != facts["device"]:
        return f"it was verified on {facts['device']}, not on {_device_name(device)}"
    return None


# ---- tuning


class _Watched:
    """Stands for a Triton kernel in the candidate's module. Records its block sizes and can replace them.

    A block size is a power of two that is passed by keyword and that the grid function reads. So the grid changes with
    it, and the kernel still covers all elements.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.seen: dict[str, int] = {}
        self.chosen: Mapping[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            sizes = {key: value for key, value in kwargs.items() if _is_power_of_two(value)}
            warps = {"num_warps": int(kwargs.get("num_warps", 4))}

            def watched(meta: Mapping[str, Any]) -> Any:
                reads = _Reads(meta)
                found = grid(reads)
                self.seen = {key: value for key, value in sizes.items() if key in reads.keys_read}
                self.seen |= warps if torch.cuda.is_available() else {}
                return found

            changed = {key: value for key, value in self.chosen.items() if key in kwargs or key == "num_warps"}
            return self.kernel[watched if callable(grid) else grid](*args, **{**kwargs, **changed})

        return launch


class _Reads(dict[str, Any]):
    """A dict that records the keys that are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.keys_read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)


def _is_power_of_two(value: Any) -> bool:
    return type(value) is int and value >= SMALLEST_BLOCK and value & (value - 1) == 0


_WATCHED: dict[str, dict[str, _Watched]] = {}
"""The watched kernels by module and name."""


def _watch_kernels(module: Any) -> None:
    """Replaces the Triton kernels that the module launches. Kernels that other kernels call stay as they are."""
    if module.__name__ in _WATCHED:
        return
    kinds = ("JITFunction", "InterpretedFunction")
    kernels = {name: one for name, one in vars(module).items() if type(one).__name__ in kinds}
    called = {name for one in kernels.values() for name in one.fn.__code__.co_names}
    _WATCHED[module.__name__] = {name: _Watched(one) for name, one in kernels.items() if name not in called}
    vars(module).update(_WATCHED[module.__name__])


class _Using:
    """A context in which launches of a package's kernels use these block sizes: ``{kernel: {name: value}}``."""

    def __init__(self, package: str, chosen: Mapping[str, Mapping[str, int]]) -> None:
        self.kernels = _WATCHED.get(f"{package}.kernel", {})
        self.chosen = chosen

    def __enter__(self) -> None:
        for name, one in self.kernels.items():
            one.chosen = self.chosen.get(name, {})

    def __exit__(self, *_: object) -> None:
        for one in self.kernels.values():
            one.chosen = {}


def _tuned(package: str, key: str, run: Callable[[], list[Tensor]], device: torch.device) -> dict[str, dict[str, int]]:
    """Return the fastest block sizes for this device and these sizes, from the cache or by trying.

    One block size after another is changed. A change stays if the outputs are still close to those of the verified
    block sizes and the whole module is faster.
    """
    path = _cache_file(package)
    cache = _read_cache(path)
    if key in cache:
        return cache[key]
    kernels = _WATCHED.get(f"{package}.kernel", {})
    expected = run()
    best: dict[str, dict[str, int]] = {name: dict(one.seen) for name, one in kernels.items() if one.seen}
    fastest = _seconds(run, device)
    for name, sizes in [(name, dict(sizes)) for name, sizes in best.items()]:
        for size, value in sizes.items():
            choices = WARPS if size == "num_warps" else [int(value * factor) for factor in BLOCK_FACTORS]
            for choice in choices:
                if choice == value or (size != "num_warps" and not SMALLEST_BLOCK <= choice <= LARGEST_BLOCK):
                    continue
                trial = {**best, name: {**best[name], size: choice}}
                with _Using(package, trial):
                    try:
                        if not _close(run(), expected):
                            continue
                        seconds = _seconds(run, device)
                    except Exception:  # such as a block that needs more shared memory than there is
                        continue
                if seconds < fastest:
                    fastest, best = seconds, trial
    _write_cache(path, key, best)
    return best


def _close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    try:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
    except AssertionError:
        return False
    return True


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call in seconds."""
    times = []
    for _ in range(REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _cache_file(package: str) -> Path:
    source = Path(importlib.import_module(f"{package}.kernel").__file__ or "").read_bytes()
    folder = Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/kernel_coder").expanduser()
    return folder / "tuned" / f"{hashlib.sha256(source).hexdigest()[:16]}.json"


def _read_cache(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_cache(path: Path, key: str, best: Mapping[str, Mapping[str, int]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(json.dumps({**_read_cache(path), key: best}, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError:  # a folder that cannot be written: the next process tunes again
        pass
