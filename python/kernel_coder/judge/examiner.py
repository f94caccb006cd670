"""The Examiner: holds the reference, the secret seeds, the inputs and the expected outputs; compares; owns the clock.

It never sees a candidate's code. It runs as a process of its own, in the sandbox, since a reference can die too.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import os
import secrets
import struct
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge import feedback, tolerance
from kernel_coder.judge.calling import (
    COMPUTE,
    arguments_of,
    built,
    called,
    set_math_mode,
    set_training,
    state_of,
)
from kernel_coder.judge.channel import Channel, ChannelClosed, ChannelTimeout, Frame, ProtocolBreach
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.inputs import Fingerprint, fill_random, floating, map_tensors, of_family, perturb, tensors_of
from kernel_coder.judge.memory import Arena
from kernel_coder.judge.protocol import (
    MAX_SLOTS,
    REPORT_BYTES,
    Audit,
    Loaded,
    Mode,
    Say,
    Status,
    TensorSpec,
    Unsendable,
    encode,
    laid_out,
    names_of_leaves,
)
from kernel_coder.judge.verdict import Outcome
from kernel_coder.ops.compare import ComparisonResult, read_comparisons

SLOT_BYTES = 1 << 28
"""Inputs of several calls at a time are held up to this."""

MOST_ILL = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Inputs on which the reference itself is further from exact than this tell nothing about a candidate."""


class Refused(Exception):
    """A task that nothing can be judged on, with the reason."""


class Ended(Exception):
    """Judging is over: how, and what is said about it."""

    def __init__(self, outcome: Outcome, reason: str, feedback: str = "", compiled: bool = True) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.feedback, self.compiled = outcome, reason, feedback or reason, compiled


class Seeds:
    """Numbers that nobody knows beforehand, all from one key that the verdict keeps.

    >>> Seeds(7).next() == Seeds(7).next() != Seeds(None).next()
    True
    """

    def __init__(self, key: int | None) -> None:
        self.key = secrets.randbits(62) if key is None else key
        self._drawn = 0

    def next(self) -> int:
        self._drawn += 1
        digest = hashlib.sha256(f"kernel_coder.judge {self.key} {self._drawn}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 2


@dataclass
class Sample:
    """Inputs of one call and what has to come out."""

    inputs: list[Any]
    tensors: list[Tensor]
    cotangents: list[Tensor]
    expected: list[Tensor]
    """From the oracle; of integers from the reference itself."""

    tolerances: list[tolerance.Tolerance]
    family: str
    changed: list[bool]
    """Which inputs the reference itself writes to."""


@dataclass
class Variant:
    """One set of shapes."""

    batch: int | None
    input_tree: Any
    input_specs: list[TensorSpec]
    cotangent_specs: list[TensorSpec]
    input_stride: int
    output_tree: Any
    output_specs: list[TensorSpec]
    output_stride: int
    slots: int = 1
    names: list[str] = field(default_factory=list)

    def as_plan(self) -> dict[str, Any]:
        return {
            "inputs": self.input_tree,
            "input_specs": self.input_specs,
            "cotangents": self.cotangent_specs,
            "input_stride": self.input_stride,
            "outputs": self.output_tree,
            "output_specs": self.output_specs,
            "output_stride": self.output_stride,
        }


class Problem:
    """A task made ready: the reference, its state, which inputs tell something, and memory to share."""

    def __init__(self, task: Mapping[str, Any], config: JudgeConfig, device: torch.device, seeds: Seeds) -> None:
        self.config, self.device, self.seeds = config, device, seeds
        self.precision: str = task["precision"]
        self.dtype = COMPUTE[self.precision]
        set_math_mode(self.precision, config.threads)
        self.rng = torch.Generator(device=device).manual_seed(seeds.next())
        self.fingerprint = Fingerprint(self.rng)
        namespace: dict[str, Any] = {"__name__": "reference"}
        with _refusing("the reference cannot be run"):
            exec(compile(task["reference"], "reference.py", "exec"), namespace)
            self.get_inputs = namespace["get_inputs"]
            self.args, self.kwargs = arguments_of(namespace["get_init_inputs"]())
            self.model = namespace[task["entry_point"]]
        with _refusing("the reference cannot be built"):
            self._build()
        with _refusing("the reference cannot be called"):
            self.sample_of: dict[str, Sample] = {}
            self.families = self._usable_families(task)
            self.variants = [self._variant(None)]
            if config.hidden_shapes and (batch := self._other_batch()) is not None:
                self.variants.append(self._variant(batch))
        if config.null_candidates:
            self._refuse_if_trivial()
        self._share()

    # ---- the reference

    def _build(self) -> None:
        self.seed = self.seeds.next()
        self.module = self._made(self.seed)
        own, other = state_of(self.module), state_of(self._made(self.seeds.next()))
        self.random_state = all(
            not floating(value) or value.numel() == 0 or not torch.equal(value, other[name])
            for name, value in own.items()
        )
        del other
        self.initial = {name: value.detach().clone() for name, value in own.items()}
        self.exact = self._made(self.seed).double()
        set_training(self.module, self.config.training)
        set_training(self.exact, self.config.training)
        self._new_state()

    def _made(self, seed: int) -> torch.nn.Module:
        return built(self.model, self.args, self.kwargs, seed=seed, device=self.device, dtype=self.dtype)

    def _new_state(self) -> None:
        """Parameters and buffers that no other candidate has seen."""
        self.use_state_drawn_at_construction()
        perturb(self.module, self.rng)
        self._copy_exact()

    def _copy_exact(self) -> None:
        """The oracle: the same state, in float64."""
        with torch.no_grad():
            for mine, value in zip(state_of(self.exact).values(), state_of(self.module).values(), strict=True):
                mine.copy_(value)

    def use_state_drawn_at_construction(self) -> None:
        """For a candidate that holds its state in another form, and drew the same random numbers for it."""
        with torch.no_grad():
            for name, value in state_of(self.module).items():
                value.copy_(self.initial[name])
        self._copy_exact()

    def refresh(self, seeds: Seeds) -> None:
        """For the next candidate: seeds, state and the memory that the last one could write to."""
        self.seeds = seeds
        self.rng.manual_seed(seeds.next())
        self._new_state()
        for spec, tensor in zip(self.init_specs, self.init_tensors, strict=True):
            self.inputs.at(spec).copy_(tensor)
        for (_, spec), tensor in zip(self.state_specs, state_of(self.module).values(), strict=True):
            self.inputs.at(spec).copy_(tensor.detach())

    def own_inputs(self, batch: int | None = None) -> list[Any]:
        torch.manual_seed(self.seeds.next())
        try:
            with self.device:
                values = self.get_inputs()
        except Exception:
            if self.device.type == "cpu":
                raise
            values = self.get_inputs()
        values = list(values) if isinstance(values, list | tuple) else [values]

        def placed(tensor: Tensor) -> Tensor:
            tensor = tensor.detach().to(self.device)
            tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            return tensor.contiguous()

        values = map_tensors(values, placed)
        return values if batch is None else map_tensors(values, lambda tensor: _rebatched(tensor, self.batch, batch))

    def inputs_of(self, family: str, batch: int | None = None) -> list[Any]:
        own = self.own_inputs(batch)
        return map_tensors(own, lambda tensor: of_family(family, tensor, self.rng))

    def outputs(self, module: torch.nn.Module, inputs: list[Any], cotangents: Sequence[Tensor]) -> Any:
        return called(module, inputs, list(cotangents) or None, module.parameters())

    def cotangents_of(self, inputs: list[Any]) -> list[Tensor]:
        """Random gradients of the outputs, if gradients are checked."""
        if not self.config.backward:
            return []
        with torch.no_grad():
            outputs = tensors_of(self.module(*map_tensors(inputs, Tensor.clone)))
        return [torch.randn(o.shape, generator=self.rng, device=o.device).to(o.dtype) for o in outputs if floating(o)]

    def sample(self, family: str, batch: int | None = None, tries: int = 4) -> Sample:
        """Inputs of a family with what has to come out. Refused if the reference is too far from exact on all of them."""
        reason = ""
        for _ in range(tries):
            inputs = self.inputs_of(family, batch)
            cotangents = self.cotangents_of(inputs)
            copies = map_tensors(inputs, Tensor.clone)
            plain = tensors_of(self.outputs(self.module, copies, cotangents))
            changed = [not _same_bits(a, b) for a, b in zip(tensors_of(copies), tensors_of(inputs), strict=True)]
            del copies
            exact = self._exact_outputs(inputs, cotangents, plain)
            shaken = self._exact_outputs(map_tensors(inputs, self._shaken), cotangents, exact)
            pairs = [*zip(plain, exact, strict=True), *zip(shaken, exact, strict=True)]
            compared = read_comparisons([ops.compare(a, b) for a, b in pairs])
            errors, sensitivities = compared[: len(plain)], compared[len(plain) :]
            reason = self._ill(family, plain, errors) or self._ill(family, plain, sensitivities)
            if not reason:
                tolerances = [
                    tolerance.of_output(output.dtype, error, sensitivity, self.precision)
                    for output, error, sensitivity in zip(plain, errors, sensitivities, strict=True)
                ]
                return Sample(inputs, tensors_of(inputs), cotangents, exact, tolerances, family, changed)
        raise Refused(f"on inputs of the family {family}, {reason}")

    def _shaken(self, tensor: Tensor) -> Tensor:
        """The exact numbers next to an input's: as far away as float32 cannot tell."""
        if not tensor.is_floating_point():
            return tensor
        noise = torch.rand(tensor.shape, generator=self.rng, device=tensor.device, dtype=torch.float64)
        eps = torch.finfo(torch.float64 if tensor.dtype == torch.float64 else torch.float32).eps
        return tensor.double() * (1 + eps * (2 * noise - 1))

    def _exact_outputs(self, inputs: list[Any], cotangents: list[Tensor], plain: list[Tensor]) -> list[Tensor]:
        doubled = map_tensors(inputs, lambda one: one.double() if one.dtype.is_floating_point else one.clone())
        doubled = map_tensors(doubled, lambda one: one.clone() if one.dtype == torch.float64 else one)
        try:
            exact = tensors_of(self.outputs(self.exact, doubled, [one.double() for one in cotangents]))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a reference that insists on a dtype is its own oracle
            return [one.double() if one.is_floating_point() else one for one in plain]
        return [
            mine if mine.is_floating_point() and like.is_floating_point() else like
            for mine, like in zip(exact, plain, strict=True)
        ]

    def _ill(self, family: str, plain: list[Tensor], compared: list[ComparisonResult]) -> str:
        """Why these inputs tell nothing, or nothing."""
        for output, result in zip(plain, compared, strict=True):
            if not floating(output):
                continue
            if family != "own" and not bool(torch.isfinite(output).all()):
                return "the reference is not finite"
            bound = MOST_ILL.get(output.dtype, 2e-4)
            if output.numel() and result.nan_added + result.inf_added + result.nan_missing + result.inf_missing:
                return "the reference overflows where the exact result does not"
            if output.numel() and not result.relative_error <= bound:
                return f"float32's rounding alone moves the result by {result.relative_error:.1e}, more than {bound:g}"
        return ""

    def _usable_families(self, task: Mapping[str, Any]) -> list[str]:
        allowed = task.get("families") or self.config.families
        usable = []
        self.skipped: dict[str, str] = {}
        for family in self.config.families:
            if family not in allowed:
                continue
            try:
                self.sample_of[family] = self.sample(family, tries=2 if family != "own" else 4)
                usable.append(family)
            except Refused as refused:
                self.skipped[family] = str(refused)
        if "own" not in usable:
            own = self.sample("own")  # says why
            self.sample_of["own"] = own
            usable.append("own")
        return usable

    # ---- shapes

    def _variant(self, batch: int | None) -> Variant:
        sample = self.sample_of["own"] if batch is None else self.sample("own", batch)
        tensors: list[Tensor] = []
        try:
            tree = encode(sample.inputs, tensors)
        except Unsendable as error:
            raise Refused(str(error)) from None
        specs, end = laid_out(tensors)
        cotangents, end = laid_out(sample.cotangents, end)
        outputs: list[Tensor] = []
        plain = self.outputs(self.module, map_tensors(sample.inputs, Tensor.clone), sample.cotangents)
        out_tree = encode(plain, outputs)
        out_specs, out_end = laid_out(outputs)
        return Variant(
            batch, tree, specs, cotangents, max(end, 512), out_tree, out_specs, max(out_end, 512), 1,
            names_of_leaves(out_tree),
        )  # fmt: skip

    def _other_batch(self) -> int | None:
        """Another size of the leading dimension that all inputs share, if the reference takes it."""
        inputs = tensors_of(self.sample_of["own"].inputs)
        sizes = {one.shape[0] for one in inputs if one.dim() >= 2}
        if len(sizes) != 1 or any(one.dim() == 1 and one.shape[0] not in sizes for one in inputs):
            return None
        self.batch = sizes.pop()
        other = self.batch - 1 if self.batch > 2 else self.batch + 1
        before = [one.shape for one in tensors_of(self.outputs(self.module, self.own_inputs(), []))]
        try:
            sample = self.sample("own", other)
        except Exception:
            return None
        after = [one.shape for one in sample.expected]
        if self.config.backward:
            return None
        batched = all(
            b and a and b[0] == self.batch and a[0] == other and b[1:] == a[1:]
            for b, a in zip(before, after, strict=True)
        )
        return other if batched else None

    # ---- null candidates

    def _refuse_if_trivial(self) -> None:
        """A task on which somebody who computes nothing would pass teaches to compute nothing."""
        alive: dict[str, None] = dict.fromkeys(["zeros", "ones", "the mean", "an input", "another call's output"])
        before: list[Tensor] | None = None
        checks = [*self.sample_of.values(), self.sample("own")]
        for sample in checks:
            for name in list(alive):
                made = [self._null(name, i, sample, before) for i in range(len(sample.expected))]
                if any(one is None for one in made):
                    if not (name == "another call's output" and before is None):
                        del alive[name]
                    continue
                found = read_comparisons(
                    [
                        ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                        for one, wanted, allowed in zip(made, sample.expected, sample.tolerances, strict=True)
                        if one is not None
                    ]
                )
                if not all(t.passes(result) for t, result in zip(sample.tolerances, found, strict=True)):
                    del alive[name]
            before = sample.expected
        if alive:
            raise Refused(f"a candidate that returns {next(iter(alive))} would pass")

    def _null(self, name: str, index: int, sample: Sample, before: list[Tensor] | None) -> Tensor | None:
        wanted = sample.expected[index]
        if name == "zeros":
            return torch.zeros_like(wanted)
        if name == "ones":
            return torch.ones_like(wanted)
        if name == "the mean":
            if not floating(wanted) or wanted.numel() <= 1:
                return None
            return torch.full_like(wanted, wanted.mean().item())
        if name == "another call's output":
            return before[index] if before is not None and before[index].shape == wanted.shape else None
        for one in sample.tensors:
            if one.numel() >= wanted.numel() > 0 and floating(one) == floating(wanted):
                copied = one.reshape(-1)[: wanted.numel()].reshape(wanted.shape)
                return copied.double() if floating(copied) else copied.to(wanted.dtype)
        return None

    # ---- shared memory

    def _share(self) -> None:
        init: list[Tensor] = []
        try:
            init_tree = encode([self.args, self.kwargs], init)
        except Unsendable as error:
            raise Refused(str(error)) from None
        self.init_specs, end = laid_out(init)
        state = state_of(self.module)
        specs, end = laid_out(list(state.values()), end)
        self.state_specs = list(zip(state, specs, strict=True))
        self.slots_at = end
        for variant in self.variants:
            fits = max(SLOT_BYTES // (variant.input_stride + variant.output_stride), 1)
            variant.slots = min(fits, MAX_SLOTS) if self.config.timing else 1
        inputs = self.slots_at + max(v.slots * v.input_stride for v in self.variants)
        outputs = max(v.slots * v.output_stride for v in self.variants)
        self.inputs = Arena(inputs, self.device)
        self.outputs_of_candidate = Arena(outputs, self.device)
        self.outputs_of_reference: Arena | None = None
        self.init_tensors = init
        self.plan = {
            "device": str(self.device),
            "precision": self.precision,
            "threads": self.config.threads,
            "training": self.config.training,
            "seed": self.seed,
            "init": init_tree,
            "init_tensors": self.init_specs,
            "state": [(name, *spec) for name, spec in self.state_specs],
            "random_state": self.random_state,
            "slots_at": self.slots_at,
            "input_bytes": self.inputs.size,
            "output_bytes": self.outputs_of_candidate.size,
            "variants": [variant.as_plan() for variant in self.variants],
        }

    def reference_outputs(self) -> Arena:
        if self.outputs_of_reference is None:
            self.outputs_of_reference = Arena(self.outputs_of_candidate.size, self.device)
        return self.outputs_of_reference

    def write(self, variant: Variant, slot: int, sample_tensors: Sequence[Tensor]) -> None:
        base = self.slots_at + slot * variant.input_stride
        for spec, tensor in zip([*variant.input_specs, *variant.cotangent_specs], sample_tensors, strict=True):
            self.inputs.at(spec, base).copy_(tensor)

    def written(self, variant: Variant, slot: int) -> list[Tensor]:
        base = self.slots_at + slot * variant.input_stride
        return [self.inputs.at(spec, base) for spec in variant.input_specs]

    def found(self, arena: Arena, variant: Variant, slot: int) -> list[Tensor]:
        return [arena.at(spec, slot * variant.output_stride) for spec in variant.output_specs]

    def close(self) -> None:
        for arena in (self.inputs, self.outputs_of_candidate, self.outputs_of_reference):
            if arena is not None:
                arena.close()


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except Refused:
        raise
    except torch.OutOfMemoryError as error:
        raise Refused(f"{what}: it is too large for this device ({str(error).splitlines()[0]})") from None
    except MemoryError:
        raise Refused(f"{what}: it is too large for this machine") from None
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        raise Refused(f"{what}: {type(error).__name__}: {text[0][:300]}") from None


def _rebatched(tensor: Tensor, batch: int, other: int) -> Tensor:
    if not tensor.dim() or tensor.shape[0] != batch:
        return tensor
    return tensor[:other].contiguous() if other < batch else torch.cat([tensor, tensor[: other - batch]])


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


class Link:
    """The Examiner's end of a Runner."""

    def __init__(self, channel: Channel, pidfd: int, outputs: Arena, report: Any, deadline: float) -> None:
        self.channel, self.pidfd, self.outputs, self.deadline = channel, pidfd, outputs, deadline
        self._report = report
        self.is_built = False

    def ask(self, say: Say, *values: int) -> None:
        try:
            self.channel.send(int(say), values=values, timeout_s=1.0)
        except (ChannelClosed, ChannelTimeout, OSError):
            raise Ended(Outcome.CRASHED, "its process ended") from None

    def answer(self, say: Say) -> Frame:
        """The Runner's answer. What is no answer is its end."""
        left = self.deadline - time.monotonic()
        try:
            frame = self.channel.receive(timeout_s=max(left, 0.0), pidfd=self.pidfd)
        except ChannelTimeout:
            raise Ended(Outcome.TIMEOUT, "no result came within the time limit") from None
        except ChannelClosed:
            raise Ended(Outcome.CRASHED, "its process ended") from None
        except ProtocolBreach:
            raise Ended(Outcome.REJECTED, "it wrote to the judge's channel") from None
        if frame.kind != say or not 0 <= frame.status <= max(Status):
            raise Ended(Outcome.REJECTED, "it wrote to the judge's channel")
        return frame

    def text(self) -> str:
        (length,) = struct.unpack("<I", self._report[:4])
        return bytes(self._report[4 : 4 + min(length, REPORT_BYTES - 4)]).decode(errors="replace")

    def forget_text(self) -> None:
        self._report[:4] = b"\0\0\0\0"


class Session:
    """One candidate's examination."""

    ended = Ended

    def __init__(self, problem: Problem, link: Link, reference: Link | None, backend: str, source: str) -> None:
        self.problem, self.link, self.reference = problem, link, reference
        self.backend, self.source = backend, source
        self.config = problem.config
        self.device = problem.device
        self.errors: dict[str, dict[str, Any]] = {}
        self.stage_s: dict[str, float] = {}
        self.timing: dict[str, Any] = {}
        self.kernel_share: float | None = None
        self.compiled = False
        self.lock: int | None = None

    def run(self) -> None:
        """Raises Ended; without, the candidate is correct."""
        with self._stage("build"):
            self._built()
        with self._stage("check"):
            checks = self._checks()
            for family, variant in checks:
                self._check(family, variant)
        if self.reference is not None and self.config.timing and self.config.timed_calls:
            with self._stage("time"):
                self._time()
        if self.backend != "torch" and self.config.ablation:
            with self._stage("proof"):
                self._prove()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.stage_s[name] = time.monotonic() - started

    def _built(self) -> None:
        frame = self.link.answer(Say.BUILT)
        status = Status(frame.status)
        if status is Status.OK:
            self.compiled = True
            loaded = frame.values[0]
            if loaded == Loaded.BY_SEED:
                if not self.problem.random_state:
                    raise Ended(Outcome.REJECTED, "it claims a state that it cannot have")
                self.problem.use_state_drawn_at_construction()
            return
        text = self.link.text()
        if status is Status.NO_MODEL:
            raise Ended(Outcome.FORMAT_ERROR, "the code defines no class ModelNew", compiled=False)
        if status is Status.OUT_OF_MEMORY:
            raise Ended(Outcome.OUT_OF_MEMORY, "it ran out of memory while it was built", compiled=False)
        if status is Status.NO_STATE:
            wanted = ", ".join(f"{name} {list(spec.shape)}" for name, spec in self.problem.state_specs[:20])
            reason = "the reference's parameters cannot be loaded into it"
            told = f"{reason}: ModelNew must hold them under the same names, or with the same shapes in the same order."
            told += f"\nThe reference has: {wanted}.\nModelNew has: {feedback.harmless(text) or 'none'}."
            raise Ended(Outcome.WRONG_OUTPUT, reason, feedback.bounded(told))
        raise self._failure(Outcome.COMPILE_ERROR, text, compiled=False)

    def _failure(self, outcome: Outcome, text: str, compiled: bool) -> Ended:
        told = feedback.exception(text, source=self.source, file="candidate.py")
        last = next((line for line in reversed(text.strip().splitlines()) if line.strip()), "no message")
        return Ended(outcome, feedback.bounded(feedback.harmless(last), 300), told, compiled=compiled)

    def _checks(self) -> list[tuple[str, Variant]]:
        plain, *hidden = self.problem.variants
        families = self.problem.families
        wanted = [(families[i % len(families)], plain) for i in range(self.config.checks)]
        return [*wanted[:1], *(("own", variant) for variant in hidden), *wanted[1:]]

    # ---- correctness

    def _check(self, family: str, variant: Variant, mode: Mode = Mode.PLAIN, slot: int | None = None) -> bool:
        """One call on fresh inputs. Ended if it fails, or, in the ablation, whether it still passes."""
        slot = secrets.randbelow(variant.slots) if slot is None else slot
        with self.gpu(exclusive=False):
            sample = self.problem.sample(family, variant.batch)
            before = self._prepare(variant, slot, sample)
            self.link.ask(Say.CALL, slot, 1, self.problem.variants.index(variant), int(mode))
            frame = self.link.answer(Say.CALL)
        if mode is Mode.ABLATED and frame.status != Status.OK:
            return False
        self.refuse_status(frame)
        found = [one.clone() for one in self.problem.found(self.link.outputs, variant, slot)]
        results = read_comparisons(
            [
                ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                for one, wanted, allowed in zip(found, sample.expected, sample.tolerances, strict=True)
            ]
        )
        if mode is Mode.ABLATED:
            return all(t.passes(r) for t, r in zip(sample.tolerances, results, strict=True))
        self._record(variant, sample, results)
        self.refuse_values(variant, sample.family, sample.tolerances, results)
        self._refuse_changed_inputs(variant, slot, sample, before)
        return True

    def _prepare(self, variant: Variant, slot: int, sample: Sample) -> Tensor:
        """Inputs written, outputs poisoned, nothing left for the device to do; the inputs' hashes."""
        problem = self.problem
        problem.write(variant, slot, [*sample.tensors, *sample.cotangents])
        start = slot * variant.output_stride
        fill_random(self.link.outputs.bytes[start : start + variant.output_stride], problem.rng)
        hashes = problem.fingerprint.of(problem.written(variant, slot))
        self.synchronise()
        return hashes

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def refuse_status(self, frame: Frame) -> None:
        status = Status(frame.status)
        if status is Status.OK:
            return
        text = self.link.text()
        if status is Status.WRONG_STRUCTURE:
            raise Ended(Outcome.WRONG_OUTPUT, feedback.bounded(feedback.harmless(text), 300))
        if status is Status.OUT_OF_MEMORY:
            raise Ended(
                Outcome.OUT_OF_MEMORY, "it ran out of memory", self._failure(Outcome.CRASHED, text, True).feedback
            )
        raise self._failure(Outcome.RUNTIME_ERROR, text, compiled=True)

    def _record(self, variant: Variant, sample: Sample, results: Sequence[ComparisonResult]) -> None:
        for name, result, allowed in zip(variant.names, results, sample.tolerances, strict=True):
            worst = self.errors.get(name)
            if worst is None or (result.mismatches, result.relative_error) >= (
                worst["mismatches"],
                worst["relative_error"],
            ):
                self.errors[name] = {
                    "name": name,
                    "elements": result.elements,
                    "mismatches": result.mismatches,
                    "max_abs_error": result.max_abs_error,
                    "max_rel_error": result.max_rel_error,
                    "relative_error": result.relative_error,
                    "reference_error": allowed.reference_error,
                }

    def refuse_values(
        self,
        variant: Variant,
        family: str,
        tolerances: Sequence[tolerance.Tolerance],
        results: Sequence[ComparisonResult],
        when: str = "",
    ) -> None:
        for name, spec, result, allowed in zip(variant.names, variant.output_specs, results, tolerances, strict=True):
            if result.mismatches:
                told = feedback.wrong_values(
                    name, result, shape=spec.shape, dtype=spec.dtype, rtol=allowed.rtol, atol=allowed.atol
                )
            elif not allowed.passes(result):
                told = (
                    f"{name} is less precise than the task asks for: its relative error is {result.relative_error:.2g}, "
                    f"more than {allowed.relative:.2g}; the reference's own is {allowed.reference_error:.2g}."
                )
            else:
                continue
            shapes = ", ".join(str(list(one.shape)) for one in variant.input_specs)
            where = f"{when}Inputs: {_KINDS[family]}, shapes {shapes}."
            if variant.batch is not None:
                where += f" The batch size was {variant.batch} there instead of {self.problem.batch}."
            raise Ended(Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\n{where}")

    def _refuse_changed_inputs(self, variant: Variant, slot: int, sample: Sample, before: Tensor) -> None:
        after = self.problem.fingerprint.of(self.problem.written(variant, slot))
        for index, (same, changed) in enumerate(zip((before == after).tolist(), sample.changed, strict=True)):
            if not same and not changed:
                raise Ended(Outcome.WRONG_OUTPUT, f"it wrote to input {index}, which the reference leaves as it is")

    # ---- proof of work

    def _prove(self) -> None:
        """The result has to come from the candidate's own kernels."""
        variant = self.problem.variants[0]
        if self._check("own", variant, Mode.ABLATED):
            raise Ended(
                Outcome.REJECTED,
                "no kernel of its own: with its kernels switched off the output is the same",
                f"ModelNew must compute its result in its own {self.backend} kernels. With them switched off the output "
                "was still right, so it came from elsewhere.",
            )
        sample = self.problem.sample("own")
        self._prepare(variant, 0, sample)
        self.link.ask(Say.CALL, 0, 1, 0, int(Mode.AUDITED))
        frame = self.link.answer(Say.CALL)
        self.refuse_status(frame)
        audit = Audit(*frame.values[:3])
        if audit.launches < 1:
            raise Ended(Outcome.REJECTED, f"no kernel of its own: no {self.backend} kernel was launched")
        if audit.library_ops and audit.moving >= audit.launches:
            raise Ended(
                Outcome.REJECTED,
                "no kernel of its own: its kernels only copy or fill what the library computed",
            )

    # ---- time

    @contextmanager
    def gpu(self, exclusive: bool) -> Iterator[None]:
        """The GPU, with others who check, or alone with the clock."""
        if self.lock is None:
            yield
            return
        fcntl.flock(self.lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)

    def _time(self) -> None:
        from kernel_coder.judge.timing import Timer

        assert self.reference is not None
        if not self.reference.is_built:
            if self.reference.answer(Say.BUILT).status != Status.OK:
                raise RuntimeError(f"the reference could not be built in its own Runner: {self.reference.text()}")
            self.reference.is_built = True
        self.timing = Timer(self, self.reference).measure()

    def findings(self) -> dict[str, Any]:
        return {
            "errors": list(self.errors.values()),
            "stage_s": self.stage_s,
            "kernel_share": self.kernel_share,
            "compiled": self.compiled,
            **self.timing,
        }


_KINDS = {
    "own": "of the task's own kind",
    "normal": "standard normal",
    "scaled": "the task's own times 10, with random signs",
    "shifted": "the task's own plus 5",
    "structured": "with constant rows, zero rows and a few elements of 100 and -100",
}


# ---- the process


def main(fds: list[int]) -> int:
    """Serve the supervisor until it closes its end: prepare a task, examine a candidate."""
    import socket

    control = socket.socket(fileno=fds[0])
    service = _Service()
    while True:
        message, received, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 16)
        if not message:
            return 0
        request = json.loads(message)
        sent: list[int] = []
        try:
            answer = service.prepare(request, sent) if request["do"] == "prepare" else service.judge(request, received)
        except Refused as refused:
            answer = {"refused": str(refused)}
        except BaseException:
            answer = {"failed": traceback.format_exc()[-4000:]}
        finally:
            for fd in received:
                os.close(fd)
        socket.send_fds(control, [json.dumps(answer).encode()], sent)


MESSAGE_BYTES = 1 << 20


class _Service:
    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.key = ""
        self.plan: Any = None
        self.report: Any = None
        self.reference_report: Any = None

    def prepare(self, request: Mapping[str, Any], sent: list[int]) -> dict[str, Any]:
        """Make the task ready. Answers with descriptors: plan, report, inputs, outputs; and of the reference's Runner:
        report, outputs."""
        from kernel_coder.judge.channel import SharedBuffer

        config = JudgeConfig.model_validate(request["config"])
        key = json.dumps([request["task"], request["config"], request["device"]])
        seeds = Seeds(config.seed)
        for old in (self.plan, self.report):
            if old is not None:
                old.close()
        self.plan = self.report = None
        is_new = key != self.key
        if is_new:
            if self.reference_report is not None:
                self.reference_report.close()
                self.reference_report = None
            if self.problem is not None:
                self.problem.close()
            self.problem, self.key = None, ""
            gc.collect()
            device = torch.device(request["device"])
            if device.type == "cuda":
                torch.cuda.empty_cache()
            with _refusing("the task cannot be judged"):
                self.problem = Problem(request["task"], config, device, seeds)
            self.key = key
        assert self.problem is not None
        problem = self.problem
        problem.refresh(seeds)
        plan = json.dumps({**problem.plan, "backend": request["backend"]}).encode()
        self.plan = SharedBuffer(len(plan), "plan")
        self.plan.view[:] = plan
        self.report = SharedBuffer(REPORT_BYTES, "report")
        sent += [self.plan.fd, self.report.fd, problem.inputs.fd, problem.outputs_of_candidate.fd]
        if self.reference_report is None:
            self.reference_report = SharedBuffer(REPORT_BYTES, "report")
        if request["timed"]:
            sent += [self.reference_report.fd, problem.reference_outputs().fd]
        return {
            "new": is_new,
            "families": problem.families,
            "skipped": problem.skipped,
            "hidden_batch": problem.variants[-1].batch,
            "device": _device_name(problem.device),
            "large": problem.inputs.size + problem.outputs_of_candidate.size,
        }

    def judge(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Examine the candidate behind the descriptors: its channel and pidfd, the reference's channel and pidfd."""
        problem = self.problem
        assert problem is not None
        deadline = time.monotonic() + request["life_s"]
        link = Link(Channel(os.dup(fds[0])), fds[1], problem.outputs_of_candidate, self.report.view, deadline)
        reference = None
        if len(fds) > 2:
            outputs = problem.reference_outputs()
            reference = Link(Channel(os.dup(fds[2])), fds[3], outputs, self.reference_report.view, deadline)
            reference.is_built = not request["reference_is_new"]
        session = Session(problem, link, reference, request["backend"], request["source"])
        if request["lock"]:
            session.lock = os.open(request["lock"], os.O_RDWR)
        ended: dict[str, Any] = {"outcome": Outcome.CORRECT.value}
        try:
            session.run()
        except Ended as end:
            ended = {"outcome": end.outcome.value, "reason": end.reason, "feedback": end.feedback}
            session.compiled = end.compiled and session.compiled
        finally:
            link.channel.close()
            if reference is not None:
                reference.channel.close()
            if session.lock is not None:
                os.close(session.lock)
        return {**ended, **session.findings(), "seeds": [problem.seeds.key], "families": problem.families}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
