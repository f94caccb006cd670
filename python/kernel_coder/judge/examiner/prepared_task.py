"""A task made ready to judge candidates on: the reference, its oracle, inputs, and memory to share."""

from __future__ import annotations

import ast
import copy
import hashlib
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner import tolerance
from kernel_coder.judge.examiner.input_families import Fingerprint, is_whole, of_family, perturb, seed_all, whole
from kernel_coder.judge.gpu.turns import SHARES, reserve, shared
from kernel_coder.judge.wire.messages import (
    ALIGNMENT,
    MAX_SLOTS,
    TensorSpec,
    Unsendable,
    encode,
    laid_out,
    names_of_leaves,
)
from kernel_coder.judge.wire.module_calls import (
    COMPUTE,
    arguments_of,
    built,
    called,
    set_math_mode,
    set_training,
    state_of,
)
from kernel_coder.judge.wire.shared_tensors import Arena
from kernel_coder.judge.wire.trees import floating, map_tensors, tensors_of
from kernel_coder.ops.compare import Comparison, ComparisonResult, read_comparisons

if TYPE_CHECKING:
    from kernel_coder.judge.examiner.timing.timer import Baseline

SLOT_BYTES = {"cpu": 1 << 28, "cuda": 2 << 30}
"""Inputs and outputs of several calls at a time are held up to this."""

TIMES_INPUTS = 12
"""Of the inputs' bytes a task is supposed to take until its reference has been called once."""

SMALL_PART = 1 / 24
"""Tasks that take less of a GPU's memory wait for nobody."""

DRAWS = 4
"""So many times a task's parameters are drawn before it is refused: some make a constant of what it computes."""

SMALL_ELEMENTS = 1 << 20
"""Of an input, whose numbers are looked at where they are: to ask the device takes longer than to look."""

KEPT_ELEMENTS = 1 << 25
"""Of an output, while a task is prepared, for what the next call's is compared with."""

STOPS_A_GPU = re.compile(r"\bbinary_cross_entropy\b|\bBCELoss\b")
"""In a reference: what looks at numbers on a GPU itself, and ends the use of it by this process if they are wrong."""

MOST_ILL = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Inputs on which the reference itself is further from exact than this tell nothing about a candidate."""


class Refused(Exception):
    """A task that nothing can be judged on, with the reason."""


class Unsteady(Refused):
    """What it asks, or what comes out, is another thing from call to call."""


class TooLarge(Refused):
    """It takes more memory than there is, at least now."""


class Seeds:
    """Numbers that nobody knows beforehand, all from one key that the verdict keeps; others for each use.

    >>> Seeds(7).next() == Seeds(7).next() != Seeds(None).next()
    True
    """

    def __init__(self, key: int | None, use: str = "candidate") -> None:
        self.key = secrets.randbits(62) if key is None else key
        self._use, self._drawn = use, 0

    def next(self) -> int:
        self._drawn += 1
        digest = hashlib.sha256(f"kernel_coder.judge {self._use} {self.key} {self._drawn}".encode()).digest()
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
    changed: dict[int, tuple[Tensor, tolerance.Tolerance]]
    """Inputs that the reference itself writes to, by number: what has to be there afterwards."""


@dataclass
class Variant:
    """One set of shapes."""

    sizes: str | None
    """What is another here than in the task itself."""

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

    def __init__(
        self,
        task: Mapping[str, Any],
        config: JudgeConfig,
        device: torch.device,
        seeds: Seeds,
        lock: int | None = None,
        whole: bool = False,
    ) -> None:
        """`lock`: the device's. It is held for a short while at a time, for somebody may wait to time a kernel.

        `whole`: it needs all of the GPU's memory. Otherwise that is guessed from its inputs.
        """
        self.config, self.device, self.seeds, self.lock = config, device, seeds, lock
        self.rhythm: tuple[int, float] | None = None
        self.keeps_inputs_back = False
        self.baseline: Baseline | None = None
        self.reference_s = math.inf
        """Of a call of the reference: the least median ever, of a GPU that nobody else used."""

        self.is_large = whole
        if whole and lock is not None:
            reserve(lock, SHARES)
        self.precision: str = task["precision"]
        self.dtype = COMPUTE[self.precision]
        set_math_mode(self.precision, config.threads)
        self.rng = torch.Generator(device=device).manual_seed(seeds.next())
        self.poison = torch.Generator(device=device).manual_seed(secrets.randbits(63))
        """For what candidates see before a call. Who sees enough of a generator's numbers knows the next ones."""

        self.fingerprint = Fingerprint(self.rng)
        self.is_steady = False
        self.kinds: tuple[Any, list[TensorSpec]] | None = None
        self.output_shapes: list[torch.Size] | None = None
        self.may_stop_gpu = device.type == "cuda" and STOPS_A_GPU.search(task["reference"]) is not None
        namespace: dict[str, Any] = {"__name__": "reference"}
        with refusing("the reference cannot be run"):
            exec(compile(task["reference"], "reference.py", "exec"), namespace)
            self.get_inputs = namespace["get_inputs"]
            self.args, self.kwargs = arguments_of(namespace["get_init_inputs"]())
            self.model = namespace[task["entry_point"]]
        with refusing("the reference cannot be built"), shared(self.lock):
            self._build()
        with refusing("the reference cannot be called"):
            self._call_first(whole)
            self._find_families(task)
            self.variants = [self._variant(None)]
            if config.hidden_shapes and not config.backward:
                self._add_second_sizes(task["reference"])
        with refusing("its inputs and outputs cannot be held"), shared(self.lock):
            self._share()

    def _call_first(self, whole: bool) -> None:
        """Call the reference once, which says how much memory it takes to judge on it; wait for that, beside others.

        What a backward pass keeps is not reckoned with.
        """
        waits = self.device.type == "cuda" and self.lock is not None and not whole
        if waits:
            with shared(self.lock):
                size = sum(one.nbytes for one in tensors_of(self.own_inputs()))
            self._reserve(TIMES_INPUTS * size + several_bytes(size))
        with shared(self.lock):
            self.changes_inputs, wanted = self._called_once()
        if waits and not self.config.backward:
            self._reserve(wanted)

    def _reserve(self, wanted: int) -> None:
        """Wait for the memory that a large task will take, so that those who are at work come to their end."""
        assert self.lock is not None
        shares = shares_of(wanted, torch.cuda.get_device_properties(self.device).total_memory)
        if shares or self.is_large:
            self.is_large = shares > 0
            torch.cuda.empty_cache()
            reserve(self.lock, shares)

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
        has_memory = bool(self.init_specs or self.state_specs)
        with shared(self.lock if has_memory else None):  # else the device has nothing to do
            self._refresh(seeds)

    def _refresh(self, seeds: Seeds) -> None:
        self.seeds = seeds
        self.rng.manual_seed(seeds.next())
        self._new_state()
        for spec, tensor in zip(self.init_specs, self.init_tensors, strict=True):
            self.inputs.at(spec).copy_(tensor)
        for (_, spec), tensor in zip(self.state_specs, state_of(self.module).values(), strict=True):
            self.inputs.at(spec).copy_(tensor.detach())

    def own_inputs(self, second: bool = False, seeded: bool = False) -> list[Any]:
        """The task's own, of a seed that nobody knows; `seeded`: of the random numbers that come next."""
        if not seeded:
            seed_all(self.seeds.next(), self.device)
        try:
            with self.device:
                values = (self.second_inputs if second else self.get_inputs)()
        except Exception:
            if self.device.type == "cpu":
                raise
            values = (self.second_inputs if second else self.get_inputs)()
        values = list(values) if isinstance(values, list | tuple) else [values]

        def placed(tensor: Tensor) -> Tensor:
            tensor = tensor.detach().to(self.device)
            tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            return tensor.contiguous()

        values = map_tensors(values, placed)
        if not second:
            self._refuse_other_kinds(values)
        return values

    def _refuse_other_kinds(self, inputs: list[Any]) -> None:
        """Memory is laid out, and plain values are handed over, once for all calls."""
        tensors: list[Tensor] = []
        try:
            kinds = encode(inputs, tensors), laid_out(tensors)[0]
        except Unsendable:  # which is said where they are to be sent
            return
        tree, specs = self.kinds = self.kinds or kinds
        if kinds[1] != specs:
            raise Unsteady("its inputs have other shapes from call to call")
        if kinds[0] != tree:
            raise Unsteady("its inputs have other plain values from call to call")

    def inputs_of(self, family: str, second: bool = False) -> list[Any]:
        own = self.own_inputs(second)
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

    def sample(self, family: str, second: bool = False, tries: int = 4) -> Sample:
        """Inputs of a family with what has to come out. Refused if the reference is far from exact on all of them.

        Whoever asks shares the device.
        """
        found: Sample | str = ""
        for _ in range(tries):
            found = self._tried(family, second)
            if isinstance(found, Sample):
                return found
        raise Refused(f"on inputs of the family {family}, {found}")

    def _tried(self, family: str, second: bool) -> Sample | str:
        """A sample, or why these inputs tell nothing.

        Of inputs of I bytes and outputs of O, in single precision, this takes 3 I + 4 O, or I + 5 O if that is more,
        beside what the reference itself holds in its call (:func:`judging_bytes`).
        """
        inputs = self.inputs_of(family, second)
        copies = map_tensors(inputs, Tensor.clone) if self.changes_inputs else inputs
        try:
            if self.may_stop_gpu and family != "own":
                self._try_on_cpu(inputs)
            cotangents = self.cotangents_of(inputs)
            plain = tensors_of(self.outputs(self.module, copies, cotangents))
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if family == "own":
                raise
            return f"the reference raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if not second and not self._has_its_shapes(family, plain):
            return "its outputs have other shapes"
        if family == "own" and not self.is_steady:
            self._refuse_unsteady(inputs, cotangents, plain)
        pairs = zip(tensors_of(copies), tensors_of(inputs), strict=True)
        changed = [index for index, (a, b) in enumerate(pairs) if self.changes_inputs and not _same_bits(a, b)]
        made = len(plain)
        plain += [tensors_of(copies)[index] for index in changed]
        del copies, pairs
        finite = [] if family == "own" else [_with_zeros(one) for one in plain if floating(one)]
        exact = self._exact_outputs(inputs, _doubled, cotangents, plain, changed)
        exact = [_doubled(mine) if floating(like) else like for mine, like in zip(exact, plain, strict=True)]
        compared = [ops.compare(a, b) for a, b in zip(plain, exact, strict=True)]
        plain = [one.to("meta") for one in plain]  # nobody needs the numbers any more
        shaken = self._exact_outputs(inputs, self._shaken, cotangents, exact, changed)
        compared += [ops.compare(a, b) for a, b in zip(shaken, exact, strict=True)]
        del shaken
        results = read_comparisons([*compared, *finite])
        errors, sensitivities, of_zeros = (results[i * len(plain) : (i + 1) * len(plain)] for i in range(3))
        if any(one.nan_added + one.inf_added for one in of_zeros):
            return "the reference is not finite"
        if reason := self._ill(plain, errors) or self._ill(plain, sensitivities):
            return reason
        tolerances = [
            tolerance.of_output(output.dtype, error, sensitivity, self.precision)
            for output, error, sensitivity in zip(plain, errors, sensitivities, strict=True)
        ]
        afterwards = dict(zip(changed, zip(exact[made:], tolerances[made:], strict=True), strict=True))
        return Sample(inputs, tensors_of(inputs), cotangents, exact[:made], tolerances[:made], family, afterwards)

    def _called_once(self) -> tuple[bool, int]:
        """Whether the reference writes to its inputs; how many bytes judging will take, by what this call took."""
        inputs = self.own_inputs()
        before = self.fingerprint.of(tensors_of(inputs))
        with most_allocated(self.device) as most:
            outputs = self.outputs(self.module, inputs, [])
        changes = not torch.equal(self.fingerprint.of(tensors_of(inputs)), before)
        i, o = (sum(one.nbytes for one in tensors_of(some)) for some in (inputs, outputs))
        return changes, judging_bytes(i, o, max(o, most()), 8 // self.dtype.itemsize)

    def _try_on_cpu(self, inputs: list[Any]) -> None:
        """It raises there what on a GPU would be the end of all that this process does with it."""
        with torch.no_grad():
            copy.deepcopy(self.module).cpu()(*map_tensors(inputs, lambda one: one.detach().cpu().clone()))

    def _has_its_shapes(self, family: str, outputs: list[Tensor]) -> bool:
        """Whether outputs have the shapes that those of the task's own inputs had. These always have to."""
        shapes = [one.shape for one in outputs]
        if family == "own":
            self.output_shapes = self.output_shapes or shapes
            if shapes != self.output_shapes:
                raise Unsteady("its outputs have other shapes from call to call")
        return self.output_shapes in (None, shapes)

    def _refuse_unsteady(self, inputs: list[Any], cotangents: list[Tensor], outputs: list[Tensor]) -> None:
        """What depends on chance, or on earlier calls, nobody can compute. What is added up in another order passes."""
        copies = map_tensors(inputs, Tensor.clone) if self.changes_inputs else inputs
        again = tensors_of(self.outputs(self.module, copies, cotangents))
        self.is_steady = [one.shape for one in again] == [one.shape for one in outputs]
        if self.is_steady:
            results = read_comparisons([ops.compare(a, b) for a, b in zip(again, outputs, strict=True)])
            whole = [one for one, like in zip(results, outputs, strict=True) if not floating(like)]
            self.is_steady = all(one.matches for one in whole) and not self._ill(outputs, results)
        if not self.is_steady:
            raise Unsteady("two calls on the same inputs differ")

    def _shaken(self, tensor: Tensor) -> Tensor:
        """The exact numbers next to an input's: as far away as float32 cannot tell."""
        is_small = tensor.numel() <= SMALL_ELEMENTS
        if not tensor.is_floating_point() or (not is_small and is_whole(tensor)):
            return _doubled(tensor)
        moves = ~whole(tensor) if is_small else True
        noise = torch.rand(tensor.shape, generator=self.rng, device=tensor.device, dtype=torch.float64)
        eps = torch.finfo(torch.float64 if tensor.dtype == torch.float64 else torch.float32).eps
        noise.mul_(2).sub_(1).mul_(eps).mul_(moves)  # in place: it may be large
        return noise.add_(1).mul_(tensor)

    def _exact_outputs(
        self,
        inputs: list[Any],
        change: Callable[[Tensor], Tensor],
        cotangents: list[Tensor],
        plain: list[Tensor],
        written: Sequence[int] = (),
    ) -> list[Tensor]:
        """Of the oracle, which may hold on to them: what it makes of inputs that are changed so, in double precision,
        and of the inputs of these numbers, to which it writes. What is no floating-point number is as the reference has
        it."""
        doubled = map_tensors(inputs, change)
        try:
            exact = tensors_of(self.outputs(self.exact, doubled, [_doubled(one) for one in cotangents]))
            exact += [tensors_of(doubled)[index] for index in written]
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a reference that insists on a dtype is its own oracle
            exact = plain
        return [mine if floating(like) else like for mine, like in zip(exact, plain, strict=True)]

    def _ill(self, plain: list[Tensor], compared: list[ComparisonResult]) -> str:
        """Why these inputs tell nothing, or nothing."""
        for output, result in zip(plain, compared, strict=True):
            if not floating(output):
                continue
            bound = MOST_ILL.get(output.dtype, 2e-4)
            if output.numel() and result.nan_added + result.inf_added + result.nan_missing + result.inf_missing:
                return "the reference overflows where the exact result does not"
            if output.numel() and not result.relative_error <= bound:
                return f"float32's rounding alone moves the result by {result.relative_error:.1e}, more than {bound:g}"
        return ""

    def _find_families(self, task: Mapping[str, Any]) -> None:
        """With other parameters, if those that were drawn let somebody pass who computes nothing."""
        for left in reversed(range(DRAWS)):
            try:
                self.families = self._usable_families(task)
                return
            except Refused as refused:
                if not left or not self.initial or isinstance(refused, Unsteady):
                    raise
            del self.module, self.exact, self.initial
            with shared(self.lock):
                self._build()

    def _usable_families(self, task: Mapping[str, Any]) -> list[str]:
        """Those on which the reference says something; and none of them if somebody who computes nothing would pass."""
        allowed = set(task.get("families") or self.config.families) | {"own"}
        usable: list[str] = []
        self.skipped: dict[str, str] = {}
        nulls = self.nulls()
        for family in dict.fromkeys([*self.config.families, "own"]):
            if family not in allowed:
                continue
            try:
                with shared(self.lock) as turn:
                    sample = self.sample(family, tries=2 if family != "own" else 4)
                    if nulls is not None:
                        turn.pause()
                        nulls.judge(sample)
            except Refused as refused:
                if family == "own" or isinstance(refused, Unsteady):
                    raise
                self.skipped[family] = str(refused)
                continue
            usable.append(family)
            if family == "own":
                self.own_tolerances = sample.tolerances
                self.shapes = [tuple(one.shape) for one in sample.tensors]
            del sample  # before the next one is made
        if nulls is not None:
            with shared(self.lock) as turn:
                sample = self.sample("own")
                turn.pause()
                nulls.judge(sample)
            nulls.refuse()
        return usable

    def nulls(self) -> Nulls | None:
        """Candidates that compute nothing, if somebody wants to know whether they would pass."""
        return Nulls() if self.config.null_candidates else None

    # ---- shapes

    def _variant(self, sizes: str | None) -> Variant:
        with shared(self.lock):
            sample = self.sample("own", second=sizes is not None)
        tensors: list[Tensor] = []
        try:
            tree = encode(sample.inputs, tensors)
        except Unsendable as error:
            raise Refused(str(error)) from None
        specs, end = laid_out(tensors)
        cotangents, end = laid_out(sample.cotangents, end)
        outputs: list[Tensor] = []
        with shared(self.lock):
            plain = self.outputs(self.module, map_tensors(sample.inputs, Tensor.clone), sample.cotangents)
        out_tree = encode(plain, outputs)
        out_specs, out_end = laid_out(outputs)
        return Variant(
            sizes, tree, specs, cotangents, max(end, 512), out_tree, out_specs, max(out_end, 512), 1,
            names_of_leaves(out_tree),
        )  # fmt: skip

    def _add_second_sizes(self, source: str) -> None:
        """Other sizes that the reference takes too: who is right on the public ones only has not solved the task."""
        for sizes, inputs in self._possible_sizes(source):
            self.second_inputs = inputs
            try:
                variant = self._variant(sizes)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # the reference does not take them
                continue
            if variant.input_specs != self.variants[0].input_specs:
                self.variants.append(variant)
                return

    def _possible_sizes(self, source: str) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Numbers that only the inputs depend on, all smaller, then one at a time; then the batch alone."""
        own = input_sizes(source)
        smaller = {name: max(size - 1 - place, 1) for place, (name, size) in enumerate(own.items())}
        choices = [smaller, *({name: size} for name, size in smaller.items())] if len(own) > 1 else [smaller] * len(own)
        for choice in choices:
            namespace: dict[str, Any] = {"__name__": "reference"}
            exec(compile(with_sizes(source, choice), "reference.py", "exec"), namespace)
            yield ", ".join(f"{name} = {size}" for name, size in choice.items()), namespace["get_inputs"]
        batches = {shape[0] for shape in self.shapes if len(shape) >= 2}
        if len(batches) == 1 and all(shape[0] in batches for shape in self.shapes if shape):
            batch = batches.pop()
            other = batch - 1 if batch > 2 else batch + 1
            if all(spec.shape and spec.shape[0] == batch for spec in self.variants[0].output_specs):

                def rebatched() -> Any:
                    return map_tensors(self.get_inputs(), lambda one: _rebatched(one, batch, other))

                yield f"batch = {other}", rebatched

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
            fits = max(SLOT_BYTES[self.device.type] // (variant.input_stride + variant.output_stride), 1)
            variant.slots = min(fits, MAX_SLOTS) if self.config.timing else 1
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        inputs = self.slots_at + max(v.slots * v.input_stride for v in self.variants)
        outputs = max(v.slots * v.output_stride for v in self.variants) + ALIGNMENT
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
            "gate_at": self.outputs_of_candidate.size - ALIGNMENT,
            "awake_s": 0.02 if self.device.type == "cuda" else 0.0,  # a GPU machine has cores to spare
            "input_bytes": self.inputs.size,
            "output_bytes": self.outputs_of_candidate.size,
            "variants": [variant.as_plan() for variant in self.variants],
        }

    @contextmanager
    def aside(self) -> Iterator[None]:
        """With random numbers of its own: what a candidate meets is the same whether this was done before it or not."""
        seeds, rng = self.seeds, self.rng
        self.seeds = Seeds(None)
        self.rng = torch.Generator(device=self.device).manual_seed(self.seeds.next())
        try:
            yield
        finally:
            self.seeds, self.rng = seeds, rng

    @property
    def has_baseline(self) -> bool:
        return self.baseline is not None and self.baseline.is_fresh

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

    @property
    def bytes_held(self) -> int:
        """Of memory that is shared with Runners, and of the reference's state: as it is, as it began, in float64."""
        arenas = (self.inputs, self.outputs_of_candidate, self.outputs_of_reference)
        state = sum(spec.nbytes for _, spec in self.state_specs)
        return sum(arena.size for arena in arenas if arena is not None) + 4 * state

    def close(self) -> None:
        for arena in (self.inputs, self.outputs_of_candidate, self.outputs_of_reference):
            if arena is not None:
                arena.close()


@contextmanager
def most_allocated(device: torch.device) -> Iterator[Callable[[], int]]:
    """Afterwards: how many bytes of a GPU torch held here at most, beside what it held before. 0 without a GPU."""
    if device.type != "cuda":
        yield lambda: 0
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield lambda: torch.cuda.max_memory_allocated(device) - before


def several_bytes(size: int) -> int:
    """That inputs or outputs of several calls take at most, those of one being so many."""
    return min(3 * MAX_SLOTS * size, 3 * SLOT_BYTES["cuda"] // 2)


def judging_bytes(inputs: int, outputs: int, call: int, longer: int = 2) -> int:
    """That all processes take at most who judge on a task.

    A sample takes its inputs, and in double precision its inputs, its outputs and all that the reference's call takes;
    or, if that is more, inputs, outputs and twice these in double precision. Each of two Runners shares outputs with
    the Examiner, and takes what a call does; inputs are shared by all, and of a small task those of several calls.

    Args:
        inputs: of a call.
        outputs: of a call.
        call: what is allocated in it at most, outputs included.
        longer: so many times are numbers as long in double precision.

    >>> [judging_bytes(i << 30, o << 30, c << 30) >> 30 for i, o, c in ((8, 8, 8), (8, 8, 16), (16, 0, 0), (1, 8, 8))]
    [99, 131, 67, 77]
    """
    sample = inputs + max(longer * (inputs + outputs + call), (1 + 2 * longer) * outputs)
    return sample + inputs + 2 * outputs + 2 * call + several_bytes(inputs + outputs)


def shares_of(wanted: int, total: int) -> int:
    """Shares of a GPU's memory that so many bytes are; 0 for what is small.

    >>> shares_of(5, 140), shares_of(70, 140), shares_of(1000, 140)
    (0, 8, 16)
    """
    return 0 if wanted <= SMALL_PART * total else min(-(-SHARES * wanted // total), SHARES)


def input_sizes(source: str) -> dict[str, int]:
    """Whole numbers above 2 with a name at the top of a reference that nothing but ``get_inputs`` depends on.

    >>> input_sizes("n, m, k = 8, 32, 5\\nclass Model:\\n  x = k\\ndef get_inputs(): return (n, m, k)")
    {'n': 8, 'm': 32}
    """
    tree = ast.parse(source)
    found: dict[str, int] = {}
    for name, value in _assigned(tree):
        if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 2:
            found[name] = value.value
    for node in tree.body:
        is_inputs = isinstance(node, ast.FunctionDef) and node.name == "get_inputs"
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        for name in list(found):
            if (name in used) != is_inputs:  # get_inputs has to use it, and nobody else may
                del found[name]
    return found


def with_sizes(source: str, sizes: Mapping[str, int]) -> str:
    """The reference with other numbers.

    >>> with_sizes("n, m = 8, 9\\nk = 3", {"n": 7})
    'n, m = (7, 9)\\nk = 3'
    """
    tree = ast.parse(source)
    for name, value in _assigned(tree):
        if name in sizes and isinstance(value, ast.Constant):
            value.value = sizes[name]
    return ast.unparse(tree)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names at the top level and what they are assigned, also several at a time."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    if isinstance(one, ast.Name):
                        yield one.id, value


ANOTHER = "another call's output"


class Nulls:
    """Candidates that compute nothing. A task on which one of them would pass teaches to compute nothing.

    They take no memory to speak of: a number that is everywhere is there once, and of another call's output so many
    elements are kept, evenly spread, that one who passes on them is as good as one who passes.
    """

    def __init__(self) -> None:
        self.alive = dict.fromkeys(["zeros", "ones", "the mean", "an input", ANOTHER])
        self._before: list[Tensor] | None = None
        self._samples = 0

    def refuse(self) -> None:
        """Raises Refused if one of them has passed on every sample; another call's output takes two to tell."""
        passed = [name for name in self.alive if self._samples > (name == ANOTHER)]
        if passed:
            raise Refused(f"a candidate that returns {passed[0]} would pass")

    def judge(self, sample: Sample) -> None:
        """Forget those who fail on a sample."""
        if not self.alive:
            return
        self._samples += 1
        some = [_some_of(one) for one in sample.expected]
        for name in list(self.alive):
            is_another = name == ANOTHER
            if is_another and self._before is None:
                continue
            expected = some if is_another else sample.expected
            made = [self._made(name, index, wanted, sample) for index, wanted in enumerate(expected)]
            found = [one for one in made if one is not None]
            if len(found) < len(made):
                del self.alive[name]
                continue
            results = read_comparisons(
                [
                    ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                    for one, wanted, allowed in zip(found, expected, sample.tolerances, strict=True)
                ]
            )
            if not all(allowed.passes(one) for allowed, one in zip(sample.tolerances, results, strict=True)):
                del self.alive[name]
        self._before = some if ANOTHER in self.alive else None

    def _made(self, name: str, index: int, wanted: Tensor, sample: Sample) -> Tensor | None:
        if name == "zeros":
            return wanted.new_zeros(()).expand_as(wanted)
        if name == "ones":
            return wanted.new_ones(()).expand_as(wanted)
        if name == "the mean":
            if not floating(wanted) or wanted.numel() <= 1:
                return None
            return wanted.mean().expand_as(wanted)
        if name == ANOTHER:
            assert self._before is not None
            return self._before[index] if self._before[index].shape == wanted.shape else None
        for one in sample.tensors:
            alike = floating(one) == floating(wanted) and one.is_complex() == wanted.is_complex()
            if alike and one.numel() >= wanted.numel() > 0:
                taken = one.reshape(-1)[: wanted.numel()].reshape(wanted.shape)
                return taken if floating(wanted) else taken.to(wanted.dtype)
        return None


def _some_of(output: Tensor) -> Tensor:
    """All of it; or copies of elements of it that are as far from each other as leaves no more than `KEPT_ELEMENTS`."""
    if output.numel() <= KEPT_ELEMENTS:
        return output
    return output.reshape(-1)[:: -(-output.numel() // KEPT_ELEMENTS) | 1].clone()


@contextmanager
def refusing(what: str) -> Iterator[None]:
    try:
        yield
    except Refused:
        raise
    except torch.OutOfMemoryError as error:
        raise TooLarge(f"{what}: it is too large for this device ({str(error).splitlines()[0]})") from None
    except MemoryError:
        raise TooLarge(f"{what}: it is too large for this machine") from None
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        kind = TooLarge if "OUT_OF_MEMORY" in text[0] else Refused  # the driver's own
        raise kind(f"{what}: {type(error).__name__}: {text[0][:300]}") from None


def _rebatched(tensor: Tensor, batch: int, other: int) -> Tensor:
    if not tensor.dim() or tensor.shape[0] != batch:
        return tensor
    return tensor[:other].contiguous() if other < batch else torch.cat([tensor, tensor[: other - batch]])


def _doubled(tensor: Tensor) -> Tensor:
    """A copy, in double precision if it is of numbers with a point."""
    if not floating(tensor):
        return tensor.clone()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)


def _with_zeros(tensor: Tensor) -> Comparison:
    """Which tells how many of its numbers are finite."""
    return ops.compare(tensor, tensor.new_zeros(()).expand_as(tensor))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
