"""The Runner: one candidate, one life. It is not trusted, whatever it is made of: the candidate lives in its process.

It holds no secret, no reference and no expected value, and what it says about itself decides nothing but how a failure
is called. What counts is bytes in the output memory, and when they were there.

It may be started before there is a candidate for it, since a process that has a GPU's context takes a while to start.
The reference's own Runner is handed one reference after another.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import linecache
import mmap
import os
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from kernel_coder.judge.config import BUILDS
from kernel_coder.judge.gpu.stream_gate import wait_for
from kernel_coder.judge.runner.cross_compile import compile_kernels
from kernel_coder.judge.runner.kernel_facts import library_facts
from kernel_coder.judge.runner.launches import (
    NoDeviceTime,
    OwnKernels,
    device_records,
    kernel_share,
    record_launches,
    warm_audit,
    without_tuning,
)
from kernel_coder.judge.runner.native import is_native, native_model
from kernel_coder.judge.runner.side_streams import HeldStreams
from kernel_coder.judge.runner.triton_cache import begin_with_built
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, Frame
from kernel_coder.judge.wire.messages import (
    REPORT_BYTES,
    TASK_DESCRIPTORS,
    Loaded,
    Mode,
    Say,
    Status,
    TensorSpec,
    decode,
    dtype_name,
    encode,
    names_of_leaves,
    same_structure,
)
from kernel_coder.judge.wire.module_calls import (
    COMPUTE,
    built,
    called,
    device_of,
    load_state,
    outputs_of,
    set_math_mode,
    set_training,
    state_of,
)
from kernel_coder.judge.wire.shared_tensors import DIRTY, Arena, dirty_device_memory, dirty_for_outputs, free_memory

with contextlib.suppress(ImportError):  # in the warm parent, once for all
    import setuptools  # noqa: F401 (torch.utils.cpp_extension needs it, and itself would start CUDA there)

PLAN, SOURCE, REPORT, INPUTS, OUTPUTS = range(TASK_DESCRIPTORS)
"""Order of a task's descriptors."""

FILE = "candidate.py"

M_PERTURB, PATTERN = -6, DIRTY ^ 0xFF
"""Of glibc's ``mallopt``: memory that is allocated is filled with the complement of the pattern."""

KEPT = {-3: 1 << 25, -1: 1 << 30, -2: 1 << 25}
"""Also of ``mallopt``, each the most that it takes or enough: from M_MMAP_THRESHOLD on memory is the system's anew for
each allocation, M_TRIM_THRESHOLD is what may lie unused, and M_TOP_PAD is what is asked for at a time."""


class Wrong(Exception):
    """An output of another kind than the reference's."""


class Failed(Exception):
    """Ends the Runner's life with a status."""

    def __init__(self, status: Status, text: str = "") -> None:
        super().__init__(text)
        self.status = status


def main(fds: list[int]) -> int:
    """Build what is handed over, then answer requests, until the other end closes or a build fails."""
    for name in (
        "TRITON_HOME",
        "TRITON_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_CACHE_PATH",
    ):
        os.environ[name] = os.path.join(os.getcwd(), name.lower())  # the warm parent's are somebody else's
    has_driver = begin_with_built(os.environ["TRITON_CACHE_DIR"])
    keep_memory()
    channel = Channel(fds[0])
    runner: _Runner | None = None
    early: Frame | None = None
    awake_s, filled = 0.0, 0
    with contextlib.suppress(ChannelClosed):
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            make_context()
            early = _asked_meanwhile(channel)
            start_gpu(has_driver)
        while True:
            with contextlib.suppress(ChannelTimeout):
                frame = early or channel.receive_at_once(timeout_s=3600.0, awake_s=awake_s)
                early = None
                if frame.kind == Say.TASK:
                    if runner is not None:
                        runner.close()
                        runner = None
                    runner = _begun(channel)
                    if runner is None:
                        return 0
                elif frame.kind == Say.PING:
                    if runner is not None:
                        runner.make_ready(*frame.values[:3])
                        if frame.values[3]:
                            runner.do_next_to_nothing(frame.values[5])
                    _say(channel, Say.PING, Status.OK)
                elif runner is not None:
                    if filled != (pattern := 0 if frame.values[4] else PATTERN):  # not between timed requests
                        fill_memory(pattern)
                        filled = pattern
                    _say(channel, Say.CALL, *_answered(runner, frame.values))
                awake_s = runner.plan["awake_s"] * frame.values[4] if runner is not None else 0.0
    return 0


def fill_memory(pattern: int) -> None:
    """Have fresh host memory filled, as it is where it was in use before: who takes it for zeros is wrong, not lucky.

    0: as it comes, for calls that are timed. Where the C library is another one it stays as it comes.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_PERTURB, pattern)


def keep_memory() -> None:
    """Have host memory that is freed kept for the next allocation.

    Otherwise it depends on how the heap happens to lie whether an output of a megabyte is given back and faulted in
    again in every call, in one of two processes that run the same code: then one is twice as fast as the other.
    """
    with contextlib.suppress(AttributeError):
        for which, most in KEPT.items():
            ctypes.CDLL(None).mallopt(which, most)


def _begun(channel: Channel) -> _Runner | None:
    """With the task whose descriptors come next; None if that failed."""
    fds = channel.receive_descriptors(TASK_DESCRIPTORS)
    report = mmap.mmap(fds[REPORT], REPORT_BYTES)
    plan, source = json.loads(_text(fds[PLAN])), _text(fds[SOURCE])
    for which in (PLAN, SOURCE, REPORT):
        os.close(fds[which])
    try:
        runner = _Runner(plan, fds, source, report, lambda: _say(channel, Say.QUEUED, Status.OK))
    except Failed as failed:
        _tell(report, str(failed))
        _say(channel, Say.BUILT, failed.status)
        return None
    except BaseException as error:
        _tell(report, traceback.format_exc())
        _say(channel, Say.BUILT, Status.OUT_OF_MEMORY if _is_memory(error) else Status.NOT_COMPILED)
        return None
    _say(channel, Say.BUILT, Status.OK, (int(runner.loaded),))
    return runner


def _answered(runner: _Runner, request: tuple[int, ...]) -> tuple[Status, tuple[int, ...]]:
    first, count, variant, mode, is_timed, number = request[:6]
    try:
        if not is_timed:
            runner.streams.hold()
        values = runner.call(first, count, variant, Mode(mode), number)
    except Wrong as wrong:
        _tell(runner.report, str(wrong))
        return Status.WRONG_STRUCTURE, ()
    except BaseException as error:
        _tell(runner.report, traceback.format_exc())
        return Status.OUT_OF_MEMORY if _is_memory(error) else Status.RAISED, ()
    if runner.facts:
        _tell(runner.report, runner.facts)
        runner.facts = ""
    if not is_timed:
        runner.give_back()
    return Status.OK, values


def make_context() -> None:
    """On the GPU, which the driver makes for one process after another.

    What fails here fails again when it is needed, and is told then.
    """
    with contextlib.suppress(Exception):
        torch.zeros(2, device="cuda")


def _asked_meanwhile(channel: Channel) -> Frame | None:
    """What was asked while the context was made. Whether it is there is answered: the next process can have its own."""
    with contextlib.suppress(ChannelTimeout):
        frame = channel.receive(timeout_s=0.0)
        if frame.kind != Say.PING:
            return frame
        _say(channel, Say.PING, Status.OK)
    return None


def start_gpu(has_driver: bool) -> None:
    """What else every candidate needs and takes a while: memory, Triton's driver, kernels that look at launches."""
    with contextlib.suppress(Exception):
        numbers = torch.zeros(2, device="cuda")
        warm_audit(numbers)
        numbers.clone()
        dirty_device_memory(numbers.device)
        torch.cuda.synchronize()
        if has_driver:  # else it would be built here, whether Triton is needed or not
            from triton.runtime.driver import driver

            driver.active.get_current_device()


def _say(channel: Channel, kind: Say, status: Status, values: tuple[int, ...] = ()) -> None:
    with contextlib.suppress(ChannelClosed):
        channel.send(int(kind), status=int(status), values=values)


def _text(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).rstrip(b"\0").decode()


def _tell(report: mmap.mmap, text: str) -> None:
    data = text.encode(errors="replace")
    if len(data) > REPORT_BYTES - 4:  # the end of a traceback says more than its beginning
        data = data[: REPORT_BYTES // 4] + b"\n...\n" + data[-REPORT_BYTES // 2 :]
    report[: 4 + len(data)] = struct.pack("<I", len(data)) + data


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's way on the CPU
        return True
    return isinstance(error, MemoryError | torch.OutOfMemoryError)


def _candidate(source: str) -> ModuleType:
    """Import the source from a file: triton.jit reads its function's text from there."""
    with open(FILE, "w") as file:
        file.write(source)
    linecache.clearcache()
    spec = importlib.util.spec_from_file_location("candidate", os.path.abspath(FILE))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module


class _Prepared(NamedTuple):
    """A call on one slot of the shared memory."""

    args: list[Any]
    cotangents: list[Tensor] | None
    tree: Any
    plain: bool  # one tensor is to be returned, and nothing around it
    names: list[str]
    specs: list[TensorSpec]
    places: list[Tensor]


class _Runner:
    def __init__(
        self, plan: dict[str, Any], fds: list[int], source: str, report: mmap.mmap, say_queued: Callable[[], None]
    ) -> None:
        self.plan, self.report, self.say_queued = plan, report, say_queued
        self.facts = ""  # of own kernels, from the last call
        self.device = torch.device(plan["device"])
        self.returned: list[Tensor] | None = None  # by the last call, where somebody looks at it; it may be large
        set_math_mode(plan["precision"], plan["threads"])
        self.inputs = Arena(os.fstat(fds[INPUTS]).st_size or plan["input_bytes"], self.device, fds[INPUTS])
        self.outputs = Arena(os.fstat(fds[OUTPUTS]).st_size or plan["output_bytes"], self.device, fds[OUTPUTS])
        dirty_for_outputs(self.device, self.outputs.size)
        self.scratch = torch.zeros(1, device=self.device)
        self.streams = HeldStreams(self.device)
        self.compiled: Any = None
        self.prepared: dict[tuple[int, int], _Prepared] = {}
        self.hooks = contextlib.ExitStack()  # for good: an extension may be built as late as in a call
        if os.environ.get("TRITON_INTERPRET") == "1":
            self.hooks.enter_context(without_tuning())
        self.own = OwnKernels(FILE)
        if plan["backend"] in BUILDS or "cpp_extension" in source:
            self.hooks.enter_context(self.own.watch_extensions())
        model = self._model(source)
        if model is None:
            raise Failed(Status.NO_MODEL, "the code defines no ModelNew")
        self.loaded = self._build(model)

    def _model(self, source: str) -> Any:
        self.module: ModuleType | None = None
        if is_native(source, self.plan["backend"]):
            return native_model(source, self.plan["backend"], self._state())
        self.module = _candidate(source)
        return getattr(self.module, "ModelNew", None)

    def _state(self) -> dict[str, Tensor]:
        """The reference's, by name."""
        return {name: self.inputs.at(TensorSpec(*spec)) for name, *spec in self.plan["state"]}

    def _build(self, model: Any) -> Loaded:
        plan = self.plan
        init = [self.inputs.at(TensorSpec(*one)).clone() for one in plan["init_tensors"]]
        args, kwargs = decode(plan["init"], lambda index: init[index])
        dtype = COMPUTE[plan["precision"]]
        self.model = built(model, args, kwargs, seed=plan["seed"], device=self.device, dtype=dtype)
        loaded = load_state(self.model, self._state(), plan["random_state"])
        if loaded is None:
            own = ", ".join(f"{name} {list(value.shape)}" for name, value in list(state_of(self.model).items())[:20])
            raise Failed(Status.NO_STATE, own)
        set_training(self.model, plan["training"])
        self.parameters = list(self.model.parameters())
        return loaded

    def close(self) -> None:
        """Forget it, before another one is handed over."""
        self.hooks.close()
        self.prepared.clear()
        self.returned = None
        if self.compiled is not None:
            torch._dynamo.reset()
        del self.model, self.module, self.compiled, self.parameters
        sys.modules.pop("candidate", None)
        gc.collect()
        self.inputs.close()
        self.outputs.close()
        self.report.close()
        free_memory(self.device)

    def call(self, first: int, count: int, variant: int, mode: Mode, number: int = 0) -> tuple[int, ...]:
        def calls() -> None:
            with self._behind_gate(number):
                for slot in range(first, first + count):
                    self._call(variant, slot)
            self._synchronise()

        if mode is Mode.COMPILED:
            if self.compiled is None:
                self.compiled = torch.compile(self.model)
            self.model, plain = self.compiled, self.model
            try:
                calls()
            finally:
                self.model = plain
            return ()
        if mode is Mode.PLAIN:
            calls()
            return ()
        if mode is Mode.PROFILED:
            return self._profiled(calls)
        if mode is Mode.FOR_TARGET:
            with without_tuning():
                facts = compile_kernels(calls, self.plan["compile_for"])
            self.facts = "\n".join(map(str, facts))
            return (len(facts),)
        with record_launches(self.own, mode) as seen:
            self.returned = [] if mode is Mode.AUDITED else None
            calls()
            reached = sum(seen.reaches(one) for one in self.returned or ())
            seen.forgive(self.returned or ())
            self.returned = None
        if mode is Mode.AUDITED:
            built = [fact for library in dict.fromkeys(self.own.libraries) for fact in library_facts(library)]
            self.facts = "\n".join(map(str, [*seen.facts.values(), *built]))
        return (seen.count, seen.moving, seen.library_ops, seen.small, reached, seen.replays)

    def _profiled(self, calls: Callable[[], None]) -> tuple[int, ...]:
        """Nanoseconds of device time in own kernels and in all, and the number of records. All 0: nothing was seen."""
        calls()  # what is made at the first call is none of a call's work
        with record_launches(self.own) as seen, torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profile:
            calls()
        try:
            time = kernel_share(device_records(profile), self.own.kernel_names(), seen.by_name)
        except NoDeviceTime:
            return (0, 0, 0)
        return (time.own_ns, time.all_ns, time.records)

    def give_back(self) -> None:
        """What the candidate does not hold of the GPU's memory, if that is much: the Examiner needs it for the next
        inputs. What the driver hands out then is zeros again, so some of it is filled."""
        if free_memory(self.device):
            dirty_for_outputs(self.device, self.outputs.size)

    def make_ready(self, first: int, count: int, variant: int) -> None:
        """For calls that will be timed."""
        for slot in range(first, first + count):
            if (variant, slot) not in self.prepared:
                self._prepare(variant, slot)

    def do_next_to_nothing(self, number: int) -> None:
        """On the device. A GPU that another process has used last comes over for it."""
        with self._behind_gate(number):
            self.scratch.zero_()
        self._synchronise()

    @contextlib.contextmanager
    def _behind_gate(self, number: int) -> Iterator[None]:
        """What the GPU is asked for here waits for the number, if there is one."""
        if number:
            wait_for(self.outputs.bytes.data_ptr() + self.plan["gate_at"], number, self.device)
        yield
        if number:
            self.say_queued()

    def _call(self, variant: int, slot: int) -> None:
        """One call. What can be known before it is, so that the clock sees little but the candidate."""
        prepared = self.prepared.get((variant, slot)) or self._prepare(variant, slot)
        if prepared.cotangents is None and self.returned is None:
            with torch.no_grad():
                made = self.model(*prepared.args)
                if type(made) is Tensor and prepared.plain and _is_like(made, prepared.places[0]):
                    prepared.places[0].copy_(made)
                    return
                result = outputs_of(made, device_of(prepared.args))
        else:
            result = called(self.model, prepared.args, prepared.cotangents, self.parameters)
        found = [result] if type(result) is Tensor and prepared.plain else self._taken_apart(result, prepared.tree)
        if self.returned is not None:
            self.returned = found
        for name, spec, tensor, place in zip(prepared.names, prepared.specs, found, prepared.places, strict=True):
            if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
                raise Wrong(f"{name} must be a plain tensor; got a {type(tensor).__name__}")
            if tensor.shape != place.shape:
                raise Wrong(f"{name} has the wrong shape: expected {list(spec.shape)}, got {list(tensor.shape)}")
            if tensor.dtype != place.dtype:
                raise Wrong(f"{name} has the wrong dtype: expected {spec.dtype}, got {dtype_name(tensor.dtype)}")
            if tensor.device != place.device:
                raise Wrong(f"{name} is on the wrong device: expected {place.device}, got {tensor.device}")
            with torch.no_grad():
                place.copy_(tensor)

    def _prepare(self, variant: int, slot: int) -> _Prepared:
        plan = self.plan["variants"][variant]
        base = self.plan["slots_at"] + slot * plan["input_stride"]
        inputs = [self.inputs.at(TensorSpec(*one), base) for one in plan["input_specs"]]
        cotangents = [self.inputs.at(TensorSpec(*one), base) for one in plan["cotangents"]]
        specs = [TensorSpec(*one) for one in plan["output_specs"]]
        self.prepared[variant, slot] = _Prepared(
            decode(plan["inputs"], lambda index: inputs[index]),
            cotangents or None,
            plan["outputs"],
            plan["outputs"][0] == "tensor",
            names_of_leaves(plan["outputs"]),
            specs,
            [self.outputs.at(spec, slot * plan["output_stride"]) for spec in specs],
        )
        return self.prepared[variant, slot]

    def _taken_apart(self, result: Any, wanted: Any) -> list[Tensor]:
        found: list[Tensor] = []
        try:
            tree = encode(result, found)
        except ValueError as error:
            raise Wrong(str(error)) from None
        if not same_structure(wanted, tree):
            raise Wrong(f"it returned {_described(tree)} instead of {_described(wanted)}")
        return found

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _is_like(tensor: Tensor, place: Tensor) -> bool:
    return tensor.shape == place.shape and tensor.dtype == place.dtype and tensor.device == place.device


def _described(tree: Any) -> str:
    """
    >>> _described(["tuple", [["tensor", 0], ["value", 1]]])
    '(a tensor, 1)'
    """
    kind, what = tree
    if kind in ("list", "tuple"):
        return "(" + ", ".join(_described(one) for one in what) + ")"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {_described(one)}" for key, one in what) + "}"
    return {"tensor": "a tensor", "number": "a number"}.get(kind, repr(what))
