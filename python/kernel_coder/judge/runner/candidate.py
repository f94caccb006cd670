"""A candidate in its Runner: built from its source, given the reference's state, and called on shared memory."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import linecache
import mmap
import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.config import BUILDS
from kernel_coder.judge.gpu.stream_gate import GateError, wait_for, write_later
from kernel_coder.judge.runner import interpreted_bfloat16
from kernel_coder.judge.runner.cross_compile import compile_kernels
from kernel_coder.judge.runner.launch_hooks import record_launches, without_tuning
from kernel_coder.judge.runner.launches import Launches
from kernel_coder.judge.runner.library_symbols import BuiltLibraries
from kernel_coder.judge.runner.native import is_native, native_model
from kernel_coder.judge.runner.outputs import OutputMemory, WrongStructure, check, fits, taken_apart
from kernel_coder.judge.runner.own_kernels import OwnKernels
from kernel_coder.judge.runner.prepared_calls import PreparedCalls
from kernel_coder.judge.runner.process_settings import GeneratorWatch
from kernel_coder.judge.runner.profiling import most_allocated, profiled
from kernel_coder.judge.runner.side_streams import HeldStreams
from kernel_coder.judge.runner.trained import step, trained_parameters
from kernel_coder.judge.runner.unseen_operators import HIDING_WORDS, OperatorWatch
from kernel_coder.judge.wire.messages import (
    ALIASED,
    HIDDEN,
    ONLY_OWN,
    REUSED,
    Mode,
    Status,
    TensorSpec,
    decode,
)
from kernel_coder.judge.wire.module_calls import (
    COMPUTE,
    LoadedState,
    built,
    called,
    device_of,
    load_state,
    one_value,
    outputs_of,
    set_math_mode,
    set_training,
    state_of,
)
from kernel_coder.judge.wire.shared_tensors import Arena, dirty_for_outputs, free_memory
from kernel_coder.judge.wire.trees import floating, tensors_of

FILE = "candidate.py"
"""File with the candidate's source, in the Runner's folder. Feedback about an exception quotes its lines."""

MODULE = f"m{secrets.token_hex(8)}"
"""Random name under which the file is imported. A candidate that does not know it cannot behave well only under it."""

MAX_WORK = 1 << 60
"""Upper limit of the number of operations in a message, because its integers have 64 bits."""


class BuildFailed(Exception):
    """Raised if the candidate cannot be used. The Runner then reports why and ends."""

    def __init__(self, status: Status, text: str = "") -> None:
        super().__init__(text)
        self.status = status


class Candidate:
    """Builds a candidate, and calls it as the Examiner asks.

    Args:
        plan: the Examiner's plan of how to build and call it.
        inputs: file descriptor of the memory for parameters, buffers and inputs.
        outputs: file descriptor of the memory for outputs.
        source: the candidate's source.
        report: memory for a text to the Examiner.
        say_queued: tells the Examiner that all work of a request waits on the GPU behind the gate.

    Raises:
        BuildFailed: there is no ``ModelNew``, or the reference's state does not fit into it.
        Exception: whatever the candidate's code raises.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        inputs: int,
        outputs: int,
        source: str,
        report: mmap.mmap,
        say_queued: Callable[[], None],
    ) -> None:
        self.plan, self.report, self.say_queued = plan, report, say_queued
        self.facts = ""
        """Facts about own kernels, from the last call that asked for them."""
        self.seen: Launches | None = None
        """What is observed in an audit; otherwise None."""
        self.reached = 0  # outputs of the audited calls that may contain own kernels' data
        self.copied = 0  # outputs that were copied to shared memory
        self.device = torch.device(plan["device"])
        set_math_mode(plan["precision"], plan["threads"])
        self.inputs = Arena(os.fstat(inputs).st_size or plan["input_bytes"], self.device, inputs)
        self.outputs = Arena(os.fstat(outputs).st_size or plan["output_bytes"], self.device, outputs)
        dirty_for_outputs(self.device, self.outputs.size)
        self.memory = OutputMemory()
        self.generators = GeneratorWatch()
        self.has_gradients = False
        """Whether calls are made with gradients on, as in training, although none is computed."""

        self.is_inference = False
        """Whether outputs are those of a further call with gradients off, although gradients are computed."""

        self.streams = HeldStreams(self.device)
        self.compiled: Any = None
        self.prepared = PreparedCalls(plan, self.inputs, self.outputs)
        self.hooks = contextlib.ExitStack()  # kept until the end: an extension may be built during a call
        if os.environ.get("TRITON_INTERPRET") == "1":
            self.hooks.enter_context(without_tuning())
            interpreted_bfloat16.install()
        self.own = OwnKernels(FILE, MODULE, None if plan["kernels"] == "any" else plan["backend"])
        if plan["backend"] in BUILDS or plan["kernels"] == "any":
            self.hooks.enter_context(self.own.watch_extensions())
        self.module: ModuleType | None = None
        self.initial: dict[str, float | None] = {}
        """The value that all elements of a parameter have after construction, by name; None if they differ."""
        self.modes: dict[torch.nn.Module, bool] = {}
        """The training mode of each module, while another mode is tried."""
        self.libraries = BuiltLibraries()
        self.may_hide = any(word in source for word in HIDING_WORDS)
        """Whether its Python code may call operators that an audit does not see."""

        self.model_class = self._load_class(source)
        self.model, self.loaded = self._build(plan["seed"])
        self.first_model = self.model
        self.trained = self._trained()
        """Parameters whose gradients are compared, in the reference's order."""

    def _load_class(self, source: str) -> Any:
        """Return the candidate's ``ModelNew``."""
        if is_native(source, self.plan["backend"]):
            return native_model(source, self.plan["backend"], self._reference_state(), self.plan["trained"])
        self.module = _imported(source)
        model = getattr(self.module, "ModelNew", None)
        if model is None:
            raise BuildFailed(Status.NO_MODEL, "the code defines no ModelNew")
        return model

    def _reference_state(self) -> dict[str, Tensor]:
        """Return the reference's parameters and buffers by name."""
        return {name: self.inputs.at(TensorSpec(*spec)) for name, *spec in self.plan["state"]}

    def _build(self, seed: int) -> tuple[torch.nn.Module, LoadedState]:
        """Construct the module and load the reference's state. Return the module, and how the state was loaded."""
        plan = self.plan
        init = [self.inputs.at(TensorSpec(*one)).clone() for one in plan["init_tensors"]]
        args, kwargs = decode(plan["init"], lambda index: init[index])
        dtype = COMPUTE[plan["precision"]]
        model = built(self.model_class, args, kwargs, seed=seed, device=self.device, dtype=dtype)
        loaded = self._load(model)
        set_training(model, plan["training"])
        return model, loaded

    def _load(self, model: torch.nn.Module) -> LoadedState:
        """Load the reference's state that is in shared memory now."""
        plan = self.plan
        own = state_of(model)
        self.initial = self.initial or {name: one_value(value) for name, value in own.items() if floating(value)}
        known = plan["optional_state"], plan["initial_state"], self.initial
        loaded = load_state(model, self._reference_state(), plan["random_state"], *known)
        if loaded is None:
            names = ", ".join(f"{name} {list(value.shape)}" for name, value in list(own.items())[:20])
            raise BuildFailed(Status.NO_STATE, names)
        return loaded

    def _trained(self) -> list[Tensor]:
        return trained_parameters(self.model, self.plan["trained"], self.loaded.names)

    def reload(self, is_second: bool, seed: int) -> None:
        """Load the state from shared memory again. Later calls use the instance that it was loaded into.

        Args:
            is_second: create another instance first; otherwise use the first one.
            seed: seed of the random numbers of that construction.
        """
        if is_second:
            self.model, self.loaded = self._build(seed)
        else:
            self.model = self.first_model
            if self.plan["trained"]:
                step(self.model, self.loaded.names, self._reference_state())
            else:
                self.loaded = self._load(self.model)
        self.trained = self._trained()

    def set_training(self, training: int) -> None:
        """Set the mode: 0 calls ``eval()``, 1 calls ``train()``, and 2 restores each module's own mode."""
        if training == 2:
            for module, was in self.modes.items():
                module.training = was
            return
        self.modes = {module: module.training for module in self.model.modules()}
        self.model.train(bool(training))

    def close(self) -> None:
        """Free everything, so that this process can build another candidate."""
        self.hooks.close()
        self.prepared.clear()
        if self.compiled is not None:
            torch._dynamo.reset()
        del self.modes, self.model, self.first_model, self.model_class, self.module, self.compiled, self.trained
        sys.modules.pop(MODULE, None)
        gc.collect()
        self.inputs.close()
        self.outputs.close()
        self.report.close()
        free_memory(self.device)

    # ---- requests

    def call(self, first: int, count: int, variant: int, mode: Mode, number: int = 0) -> tuple[int, ...]:
        """Call the candidate on some slots of the shared memory.

        Args:
            first: index of the first slot.
            count: number of slots. Each is one call.
            variant: index of the variant in the plan: the shapes of inputs and outputs.
            mode: how the calls are made.
            number: the calls wait on the GPU until the gate has this number; 0: they do not wait.

        Returns:
            For AUDITED the values of ``messages.Audit``; for the ablations the first two of them. For PROFILED,
            nanoseconds of device time in own kernels and in all kernels, the number of records, and the bytes that a
            call allocates at most; for WEIGHED only these bytes. For FOR_TARGET, the number of compiled kernels.
        """

        without_copies = {
            Mode.EMPTY: self.prepared.copy_only,
            Mode.PROFILED: self._only_model,
            Mode.WEIGHED: self._only_model,
        }
        call = without_copies.get(mode, self._call)
        computes_gradients = bool(self.plan["variants"][variant]["cotangents"])
        if computes_gradients:
            self.trained = self._trained()

        def calls() -> None:
            order = random.Random(secrets.token_bytes(16)).sample(range(first, first + count), count)
            with self._behind_gate(number), torch.set_grad_enabled(self.has_gradients or computes_gradients):
                for slot in order:
                    call(variant, slot)
            self._synchronise()

        if mode in (Mode.GRADIENTS, Mode.INFERENCE):
            self.has_gradients, self.is_inference = mode is Mode.GRADIENTS, mode is Mode.INFERENCE
            try:
                calls()
            finally:
                self.has_gradients = self.is_inference = False
            return ()
        if mode in (Mode.PLAIN, Mode.EMPTY):
            calls()
            return ()
        if mode is Mode.COMPILED:
            self._call_compiled(calls)
            return ()
        if mode is Mode.PROFILED:
            return profiled(self.own, calls)
        if mode is Mode.WEIGHED:
            return (most_allocated(calls),)
        if mode is Mode.FOR_TARGET:
            with without_tuning():
                facts = compile_kernels(calls, self.plan["compile_for"])
            self.facts = "\n".join(map(str, facts))
            return (len(facts),)
        return self._recorded(calls, mode)

    def _call_compiled(self, calls: Callable[[], None]) -> None:
        """Make the calls under ``torch.compile``."""
        if self.compiled is None:
            self.compiled = torch.compile(self.model)
        self.model, plain = self.compiled, self.model
        try:
            calls()
        finally:
            self.model = plain

    def _recorded(self, calls: Callable[[], None], mode: Mode) -> tuple[int, ...]:
        """Make the calls while launches are recorded. Return the values of ``messages.Audit``."""
        self.copied = self.reached = 0
        self.memory.is_aliased = False
        if mode is Mode.AUDITED:
            self.libraries.look(self.own.libraries)
        watch = OperatorWatch() if mode is Mode.AUDITED and (self.may_hide or self.libraries.may_hide) else None
        with record_launches(self.own, mode, "library_matmul" not in self.plan["allow"], self.model) as seen:
            self.seen = seen if mode is Mode.AUDITED else None
            try:
                with watch or contextlib.nullcontext():
                    calls()
            finally:
                self.seen = None
        hidden: list[str] = []
        if mode is Mode.AUDITED:
            seen.library_moves -= self.copied
            self.libraries.look(self.own.libraries)
            hidden = [*self.libraries.hidden, *(watch.unseen if watch else [])]
            lines = [f"{HIDDEN}{name}" for name in hidden[:3]] + [ALIASED] * self.memory.is_aliased
            lines += [REUSED] * self.memory.is_reused
            lines += [ONLY_OWN] * seen.are_all
            self.facts = "\n".join([*lines, *map(str, seen.facts.values()), *self.libraries.facts])
        if mode is not Mode.AUDITED:
            return (seen.count, seen.moving)
        work = min(seen.library_work, MAX_WORK)
        return (seen.count, seen.moving, seen.library_ops, len(hidden), self.reached, seen.replays, work)

    def give_back(self) -> None:
        """Give unused GPU memory of this process back to the GPU if there is much of it.

        The Examiner needs it for the next inputs. Fresh memory from the driver is zero, so some memory is filled again.
        """
        self.prepared.free_copies()
        if free_memory(self.device):
            dirty_for_outputs(self.device, self.outputs.size)

    def make_ready(self, first: int, count: int, variant: int) -> None:
        """Prepare calls that will be timed."""
        for slot in range(first, first + count):
            self.prepared.at(variant, slot)

    @contextlib.contextmanager
    def _behind_gate(self, number: int) -> Iterator[None]:
        """Make the GPU's work that is queued in this context wait until the gate has the number. After that work the
        same number is written at another place, also if a call failed: the Examiner's stream waits for it. 0: do
        neither."""
        if not number:
            yield
            return
        memory = self.outputs.bytes.data_ptr()
        wait_for(memory + self.plan["gate_at"], number, self.device)
        try:
            yield
        except BaseException:
            with contextlib.suppress(GateError):  # the call may have broken the CUDA context
                write_later(memory + self.plan["done_at"], number, self.device)
            raise
        write_later(memory + self.plan["done_at"], number, self.device)
        self.say_queued()

    # ---- one call

    def _call(self, variant: int, slot: int) -> None:
        """Call the candidate on a slot, check the structure of its outputs, and copy them to shared memory."""
        prepared = self.prepared.at(variant, slot)
        if prepared.cotangents is None and self.seen is None:
            made = self.model(*prepared.args)
            if torch.is_grad_enabled() is not self.has_gradients:
                raise WrongStructure("a call changes whether gradients are computed in the whole process")
            if type(made) is Tensor and prepared.is_one_tensor and fits(made, prepared.places[0]):
                # The common case comes first, since every timed call includes this code.
                prepared.places[0].copy_(made.detach() if self.has_gradients else made)
                return
            result = outputs_of(made, device_of(prepared.args))
        else:
            result = called(self.model, prepared.args, prepared.cotangents, self.trained)
            if self.is_inference:
                result = called(self.model, prepared.args, None, ()), result[1]
        is_one = type(result) is Tensor and prepared.is_one_tensor
        found = [result] if is_one else taken_apart(result, prepared.outputs)
        if self.seen is not None:
            self.reached += sum(map(self.seen.reaches, found))
            state = {name for name, *_ in self.plan["state"]}
            buffers = [value for name, value in self.model.named_buffers() if name in state]
            others = [*self.model.parameters(), *buffers, *(prepared.cotangents or ())]
            self.memory.look(found, tensors_of(prepared.args), others)
        for name, spec, tensor, place in zip(prepared.names, prepared.specs, found, prepared.places, strict=True):
            check(name, tensor, place, spec)
            with torch.no_grad():
                place.copy_(tensor)
            self.copied += 1

    def _only_model(self, variant: int, slot: int) -> None:
        """Call the candidate on a slot without copying its outputs. These copies would count as the library's work."""
        prepared = self.prepared.at(variant, slot)
        called(self.model, prepared.args, prepared.cotangents, self.trained)

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _imported(source: str) -> ModuleType:
    """Import the source from a file, because ``triton.jit`` reads a function's text from there."""
    with open(FILE, "w") as file:
        file.write(source)
    linecache.clearcache()
    spec = importlib.util.spec_from_file_location(MODULE, os.path.abspath(FILE))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module
