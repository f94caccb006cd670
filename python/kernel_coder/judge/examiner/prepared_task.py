"""A task that is ready to judge candidates: its reference, its usable input families, and its shared memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.fingerprint import Fingerprint
from kernel_coder.judge.examiner.hidden_shapes import OtherSizes, other_sizes
from kernel_coder.judge.examiner.memory_estimates import (
    MEMORY_PER_INPUT_BYTE,
    SMALL_PART,
    judging_bytes,
    most_allocated,
    several_bytes,
    shares_of,
    slot_bytes,
)
from kernel_coder.judge.examiner.null_candidates import NullCandidates
from kernel_coder.judge.examiner.randomness import Draws, Seeds
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.refusals import Refused, Unsteady, refusing
from kernel_coder.judge.examiner.samples import Sample, SampleMaker
from kernel_coder.judge.examiner.sensitivity import weigh
from kernel_coder.judge.examiner.task_memory import TaskMemory, Variant, input_layout, variant_of
from kernel_coder.judge.examiner.timing_records import ReferenceTiming
from kernel_coder.judge.examiner.widened import doubled
from kernel_coder.judge.gpu.facts import gpu_facts
from kernel_coder.judge.gpu.turns import MEMORY_SHARES, GpuTurns
from kernel_coder.judge.wire.module_calls import one_value, set_math_mode
from kernel_coder.judge.wire.op_work import WorkCounter
from kernel_coder.judge.wire.trees import floating, map_tensors, tensors_of

PARAMETER_DRAWS = 4
"""Number of times that a task's parameters are drawn before the task is refused. Some draws make the result a constant,
for example by closing a gate."""

WEIGHED_ELEMENTS = 1 << 24
"""Upper limit of the elements of inputs and outputs together at which each input and parameter is tested for its effect
on the result. The test takes memory and many calls."""

TRIES = {"normal": 2, "scaled": 2, "shifted": 2, "structured": 2}
"""Samples of a family that are drawn before it is left out. Other families get 5, since their size is random."""


class PreparedTask:
    """A prepared task: everything that is the same for all of its candidates."""

    def __init__(
        self,
        task: Mapping[str, Any],
        config: JudgeConfig,
        device: torch.device,
        seeds: Seeds,
        turns: GpuTurns,
        whole: bool = False,
    ) -> None:
        """
        Args:
            task: the task's ``reference`` (source), ``entry_point``, ``precision`` and, optionally, ``families``.
            config: the judge's configuration.
            device: the device on which candidates are judged.
            seeds: secret seeds.
            turns: turns on the device. Each turn is short, because another process may wait to time a kernel.
            whole: reserve all of the GPU's memory. Otherwise the task's need is estimated from its inputs.

        Raises:
            Refused: no candidate can be judged on the task.
        """
        self.config, self.device, self.turns = config, device, turns
        self.known = ReferenceTiming()
        self._work: int | None = None
        self._reference_bytes: int | None = None
        self._counter: WorkCounter | None = None
        self._has_eval_mode: bool | None = None
        self.is_large = whole
        """Whether the task takes so much of the GPU's memory that it must be closed after each candidate."""

        self.shares = MEMORY_SHARES if whole else 0
        """Shares of the GPU's memory that are reserved while a candidate is judged on the task."""

        if whole and turns.lock is not None:
            turns.reserve(MEMORY_SHARES)
        self.precision: str = task["precision"]
        set_math_mode(self.precision, config.threads)
        self.draws = Draws(seeds, device)
        self.fingerprint = Fingerprint(self.draws.rng)
        with refusing("the reference cannot be run"):
            self.reference = Reference(task, config, device, self.draws)
        self.samples = SampleMaker(self.reference, self.precision)
        with refusing("the reference cannot be built"):
            self.reference.build(turns)
        with refusing("the reference cannot be called"):
            self._call_first(whole)
            self._weigh()
            self._find_families(task)
            self.variants = [self._variant()]
            if config.hidden_shapes != "off":
                self._add_hidden_shapes()
        with refusing("its inputs and outputs do not fit into memory"), turns.shared():
            self.memory = TaskMemory(self.reference, self.variants, config)
            self.plan = _plan_of(self)

    # ---- the memory that judging needs

    def _call_first(self, whole: bool) -> None:
        """Call the reference once, to see how much memory judging takes. On a GPU that other tasks use too, wait until
        that memory is free.

        The estimate does not include the memory that a backward pass keeps.
        """
        waits = self.device.type == "cuda" and self.turns.lock is not None and not whole
        if waits:
            with self.turns.shared():
                size = sum(one.nbytes for one in tensors_of(self.reference.own_inputs()))
            self._reserve(MEMORY_PER_INPUT_BYTE * size + several_bytes(size, slot_bytes(self.device)))
        with self.turns.shared():
            self.reference.changes_inputs, wanted = self._call_once()
        if waits and not self.config.backward:
            self._reserve(wanted)

    def _call_once(self) -> tuple[bool, int]:
        """Return whether the reference writes to its inputs, and the bytes that judging takes, estimated by this
        call."""
        reference = self.reference
        inputs = reference.own_inputs()
        before = self.fingerprint.of(tensors_of(inputs))
        with most_allocated(self.device) as most:
            outputs = reference.outputs(reference.module, inputs, [])
        changes = not torch.equal(self.fingerprint.of(tensors_of(inputs)), before)
        i, o = (sum(one.nbytes for one in tensors_of(some)) for some in (inputs, outputs))
        least = min((one.dtype.itemsize for one in tensors_of(inputs) if floating(one)), default=4)
        longer, slots, call = max(8 // least, 1), slot_bytes(self.device), max(o, most())
        del inputs, outputs
        return changes, judging_bytes(i, o, call, longer, slots, self._oracle_bytes())

    def _oracle_bytes(self) -> int:
        """Return the most bytes that a call of the oracle allocates on the GPU; 0 if it fails, or without a GPU."""
        if self.device.type != "cuda":
            return 0
        inputs = map_tensors(self.reference.own_inputs(), doubled)
        try:
            with most_allocated(self.device) as most:
                self.reference.outputs(self.reference.exact, inputs, [])
            return most()
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the reference works only in its own dtype
            return 0

    def _reserve(self, wanted: int) -> None:
        """Reserve the memory that judging takes. Wait until it is free, so that tasks that are being judged can
        finish."""
        total = torch.cuda.get_device_properties(self.device).total_memory
        self.is_large = wanted > SMALL_PART * total
        self.shares = shares_of(wanted, total, self.config.parallel())
        if self.is_large:
            torch.cuda.empty_cache()
        self.turns.reserve(self.shares)

    # ---- usable inputs

    def _weigh(self) -> None:
        """Scale up parameters that hardly change the result, and refuse a task with an input that hardly does."""
        if not self.config.null_candidates or self.config.backward or self.reference.changes_inputs:
            return
        try:
            with self.turns.shared():
                sample = self.samples.sample("own")
                if sum(one.numel() for one in [*sample.tensors, *sample.expected]) <= WEIGHED_ELEMENTS:
                    weigh(self.reference, sample)
        except Refused as refused:
            if "within the tolerance" in str(refused):
                raise
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a reference that works only in its own dtype has no oracle in double precision
            return

    def _find_families(self, task: Mapping[str, Any]) -> None:
        """Find the usable input families. Draw other parameters if a candidate that computes nothing would pass."""
        for left in reversed(range(PARAMETER_DRAWS)):
            try:
                self.families = self._usable_families(task)
                return
            except Refused as refused:
                if not left or not self.reference.initial or isinstance(refused, Unsteady):
                    raise
            self.reference.forget()
            self.reference.build(self.turns)
            self._weigh()

    def _usable_families(self, task: Mapping[str, Any]) -> list[str]:
        """Return the families on which the reference is near enough to exact. Raise Refused if the task's own family is
        not one of them, or if a candidate that computes nothing would pass on all."""
        allowed = set(task.get("families") or self.config.families) | {"own"}
        usable: list[str] = []
        self.skipped: dict[str, str] = {}
        nulls = self.null_candidates()
        for family in dict.fromkeys([*self.config.families, "own"]):
            if family not in allowed:
                continue
            try:
                with self.turns.shared() as turn:
                    sample = self.samples.sample(family, tries=TRIES.get(family, 5))
                    if nulls is not None:
                        turn.pause()
                        nulls.try_on(sample)
            except Refused as refused:
                if family == "own" or isinstance(refused, Unsteady):
                    raise
                self.skipped[family] = str(refused)
                continue
            usable.append(family)
            if family == "own":
                self.own_tolerances = sample.tolerances
                self._input_shapes = [tuple(one.shape) for one in sample.tensors]
            del sample  # frees its memory before the next one is made
        if nulls is not None:
            with self.turns.shared() as turn:
                sample = self.samples.sample("own")
                turn.pause()
                nulls.try_on(sample)
            nulls.refuse()
        return usable

    def null_candidates(self) -> NullCandidates | None:
        """Return the candidates that compute nothing, if the configuration asks to try them."""
        return NullCandidates() if self.config.null_candidates else None

    def sample(self, family: str, variant: Variant) -> Sample:
        """Return a sample of the family. If the family is refused now, although it was usable when the task was
        prepared, return a sample of the task's own family.

        Neither the candidate nor the judge is at fault then. An example is a softmax in bfloat16 of products around
        1,000: the reference is exact enough only where no two of them are near each other.
        """
        try:
            return self.samples.sample(family, variant.get_inputs)
        except Refused:
            if family == "own":
                raise
        return self.samples.sample("own", variant.get_inputs)

    def reference_work(self) -> int:
        """Return the number of the reference's operations in a call, without those that the library may do."""
        if self._work is None:
            reference = self.reference
            with self.turns.shared(), self.draws.aside():
                inputs = reference.own_inputs()
                cotangents = reference.cotangents_of(inputs)
                with WorkCounter("library_matmul" not in self.config.allow) as counter:
                    reference.outputs(reference.module, inputs, cotangents)
            self._work = counter.work
        return self._work

    def reference_memory_bytes(self) -> int | None:
        """Return the GPU memory that a call of the reference allocates, in bytes; None without a GPU."""
        if self.device.type == "cuda" and self._reference_bytes is None:
            with self.turns.shared(), self.draws.aside():
                inputs = self.reference.own_inputs()
                cotangents = self.reference.cotangents_of(inputs)
                held = torch.cuda.memory_allocated()
                with most_allocated(self.device) as most:
                    self.reference.outputs(self.reference.module, inputs, cotangents)
                self._reference_bytes = max(most() - held, 0)
        return self._reference_bytes

    def floor_s(self) -> float | None:
        """Return the shortest time of a call on this GPU, in seconds; None without a GPU or if it is unknown."""
        if self.device.type != "cuda":
            return None
        variant = self.variants[0]
        size = sum(spec.nbytes for spec in [*variant.input_specs, *variant.output_specs])
        return gpu_facts(self.device).floor_s(size, self._counted().work, self.precision)

    def launches(self) -> int:
        """Return the approximate number of kernels that a call of the reference launches on a GPU: its operators."""
        return max(1, self._counted().operators)

    def _counted(self) -> WorkCounter:
        """Return the operations of products, and the operators, in a call of the reference."""
        if self._counter is None:
            with self.turns.shared(), self.draws.aside():
                inputs = self.reference.own_inputs()
                cotangents = self.reference.cotangents_of(inputs)
                with WorkCounter(others=False) as counter:
                    self.reference.outputs(self.reference.module, inputs, cotangents)
            self._counter = counter
        return self._counter

    def has_eval_mode(self) -> bool:
        """Return whether the module is in training mode and its eval mode can be checked too."""
        if self._has_eval_mode is None:
            self._has_eval_mode = self.reference.module.training
            if self._has_eval_mode:
                try:
                    with self.reference.in_eval_mode(), self.turns.shared(), self.draws.aside():
                        self.samples.sample("own")
                except Refused:
                    self._has_eval_mode = False
        return self._has_eval_mode

    # ---- sizes

    def _variant(self, sizes: str | None = None, get_inputs: Callable[[], Any] | None = None) -> Variant:
        with self.turns.shared():
            sample = self.samples.sample("own", get_inputs)
        layout = input_layout(sample)
        reference = self.reference
        with self.turns.shared():
            inputs = map_tensors(sample.inputs, torch.Tensor.clone)
            outputs = reference.outputs(reference.module, inputs, sample.cotangents)
        return variant_of(layout, outputs, sizes, get_inputs, reference.trained)

    def _add_hidden_shapes(self) -> None:
        """Add a variant with smaller sizes and one with larger sizes, as far as the reference accepts them."""
        own, reference = self.variants[0], self.reference
        rng = random.Random(self.draws.seeds.next())
        for is_larger in (False, True):
            known = self._input_shapes, own.output_specs
            self._add_first(other_sizes(reference.source, reference.get_inputs, *known, is_larger, rng))

    def _add_first(self, choices: Iterator[OtherSizes]) -> None:
        """Add the first variant that the reference accepts and that differs from all others."""
        for other in choices:
            try:
                variant = self._variant(other.description, other.get_inputs)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # the reference does not take these sizes
                continue
            if all(variant.input_specs != one.input_specs for one in self.variants):
                self.variants.append(variant)
                return

    # ---- candidates

    def refresh(self, seeds: Seeds) -> None:
        """Prepare for the next candidate: new seeds, new parameters, and clean shared memory."""
        has_memory = bool(self.memory.init_specs or self.memory.state_specs)
        with self.turns.shared() if has_memory else nullcontext():  # without parameters the device is not used
            self.draws.restart(seeds)
            self.memory.forget()
            self.reference.draw_state()
            self.memory.write_state()

    def close(self) -> None:
        """Free the shared memory."""
        self.memory.close()


def _plan_of(task: PreparedTask) -> dict[str, Any]:
    """Return the plan of the task, which every Runner reads."""
    memory = task.memory
    return {
        "device": str(task.device),
        "precision": task.precision,
        "threads": task.config.threads,
        "training": task.config.training,
        "seed": task.reference.seed,
        "init": memory.init_tree,
        "init_tensors": memory.init_specs,
        "trained": task.reference.trained,
        "state": [(name, *spec) for name, spec in memory.state_specs],
        "random_state": task.reference.has_random_state,
        "optional_state": sorted(task.reference.tables),
        "initial_state": {name: one_value(value) for name, value in task.reference.initial.items()},
        "allow": task.config.allow,
        "slots_at": memory.slots_at,
        "gate_at": memory.gate_at,
        "done_at": memory.done_at,
        "awake_s": 0.02 if task.device.type == "cuda" else 0.0,  # a machine with a GPU has cores to spare
        "input_bytes": memory.inputs.size,
        "output_bytes": memory.candidate_outputs.size,
        "variants": [variant.as_plan() for variant in task.variants],
    }
