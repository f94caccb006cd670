"""Samples: inputs of one call with the outputs that are expected and how far from them a candidate may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.examiner import tolerance
from kernel_coder.judge.examiner.gathered import NEARLY, Gathered, gathered_of
from kernel_coder.judge.examiner.input_families import REACHES, is_whole, whole
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.refusals import Refused, Unsteady
from kernel_coder.judge.wire.trees import floating, map_tensors, tensors_of
from kernel_coder.ops.compare import Comparison, ComparisonResult, read_comparisons

SMALL_ELEMENTS = 1 << 20
"""Elements of an input up to which its patterns are computed without asking the device first: the question would take
longer than the computation."""

MAX_REFERENCE_ERROR = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Largest relative error of the reference itself, by dtype of the output. Where the reference is further from exact, a
comparison with it tells nothing about a candidate."""


MAX_TF32_ERROR = 5e-3
"""The same for tasks that are declared as TF32, whose products have errors of about a thousandth."""

BY_MAGNITUDE = frozenset({"own", "normal", "outlier"})
"""Families on which small elements have bounds of their own. On others an honest kernel may lose small numbers:
log(1 + exp(x)) does at -20."""

ZERO_NOISE = 1e-6
"""What replaces zeros, times a standard normal number, to find out whether the order of zeros decides an output."""

BY_LARGEST_INPUT = frozenset({"huge", "offset", "negative", "outlier"})
"""Families with inputs so large that their rounding errors matter where the output depends on small differences."""

MAX_NOT_FINITE = 0.5
"""Share of an output's elements that may be infinite or no numbers. Beyond it a comparison tells too little."""


@dataclass
class Sample:
    """Inputs of one call and what is expected of it."""

    inputs: list[Any]
    tensors: list[Tensor]
    """The tensors in `inputs`."""

    cotangents: list[Tensor]
    """Gradients of the outputs, if gradients are checked."""

    expected: list[Tensor]
    """The oracle's outputs; integers and bools as the reference returns them."""

    tolerances: list[tolerance.Tolerance]
    """Of each output."""

    magnitudes: list[tolerance.Magnitudes | None]
    """Of each output: how much smaller the bound is for small elements; None: it is the same."""

    gathered: list[Gathered | None]
    """Of each output: how integers are compared that a rounding error of the inputs may change; None: exactly."""

    family: str
    changed: dict[int, tuple[Tensor, tolerance.Tolerance]]
    """Inputs that the reference itself writes to, by number: what they must hold afterwards."""


class SampleMaker:
    """Draws samples of a reference, and leaves out those on which the reference itself is far from exact."""

    def __init__(self, reference: Reference, precision: str) -> None:
        self.reference, self.precision = reference, precision
        self._output_shapes: list[torch.Size] | None = None
        self._own_rms: list[float] = []
        self._is_homogeneous: bool | None = None
        self._is_steady = False
        self._reaches: dict[str, int] = {}
        """By family: index of the largest reach that the reference bore."""

    def sample(self, family: str, get_inputs: Callable[[], Any] | None = None, tries: int = 4) -> Sample:
        """A sample of a family. The caller has a turn on the device.

        Args:
            family: name of the input family.
            get_inputs: of other sizes than the task's own; None: the task's.
            tries: how often inputs are drawn until the reference is near enough to exact.

        Raises:
            Refused: it never was.
        """
        found: Sample | str = ""
        first = self._reaches.get(family, 0)
        for number in range(first, first + tries):
            reach = REACHES[min(number, len(REACHES) - 1)]
            found = self.try_sample(family, get_inputs, reach)
            if isinstance(found, Sample):
                self._reaches[family] = min(number, len(REACHES) - 1)
                return found
        raise Refused(f"on inputs of the family {family}, {found}")

    def try_sample(self, family: str, get_inputs: Callable[[], Any] | None = None, reach: float = 1.0) -> Sample | str:
        """A sample of inputs that are drawn once, or why they tell nothing.

        For inputs of I bytes and outputs of O bytes in single precision, this takes 3 I + 4 O bytes, or I + 5 O if that
        is more, in addition to what the reference itself holds in its call
        (:func:`kernel_coder.judge.examiner.memory_estimates.judging_bytes`).
        """
        reference = self.reference
        widens = family == "tiny" and not self._scales_with_inputs()  # asked before other large tensors are there
        inputs = reference.inputs_of(family, get_inputs, reach)
        copies = map_tensors(inputs, Tensor.clone) if reference.changes_inputs else inputs
        try:
            if reference.may_stop_gpu and family != "own":
                reference.try_on_cpu(inputs)
            cotangents = reference.cotangents_of(inputs)
            plain = tensors_of(reference.outputs(reference.module, copies, cotangents))
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if family == "own":
                raise
            return f"the reference raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if get_inputs is None and not self._has_own_output_shapes(family, plain):
            return "its outputs have other shapes"
        if family == "own" and not self._is_steady:
            self._refuse_unsteady(inputs, cotangents, plain)
        pairs = zip(tensors_of(copies), tensors_of(inputs), strict=True)
        changed = [index for index, (a, b) in enumerate(pairs) if reference.changes_inputs and not same_bits(a, b)]
        made = len(plain)
        plain += [tensors_of(copies)[index] for index in changed]
        del copies, pairs
        finite = [] if family == "own" else [_with_zeros(one) for one in plain if floating(one)]
        exact = self._exact_outputs(inputs, _doubled, cotangents, plain, changed)
        exact = [_doubled(mine) if floating(like) else like for mine, like in zip(exact, plain, strict=True)]
        compared = [ops.compare(a, b) for a, b in zip(plain, exact, strict=True)]
        some = [tolerance.places_of(one) if family in BY_MAGNITUDE and floating(one) else None for one in exact]
        errors_there = _errors_at(some, plain, exact)
        plain = [one.to("meta") for one in plain]  # the numbers are not needed any more
        shaken = self._exact_outputs(inputs, self._shaken, cotangents, exact, changed)
        compared += [ops.compare(a, b) for a, b in zip(shaken, exact, strict=True)]
        shaken_there = _errors_at(some, shaken, exact)
        gathered = self._gathered(inputs, cotangents, exact[:made])
        del shaken
        results = read_comparisons([*compared, *finite])
        errors, sensitivities, of_zeros = (results[i * len(plain) : (i + 1) * len(plain)] for i in range(3))
        if any(one.nan_added + one.inf_added > MAX_NOT_FINITE * one.elements for one in of_zeros):
            return "the reference is not finite"
        if reason := self._ill_conditioned(plain, errors) or self._ill_conditioned(plain, sensitivities):
            return reason
        tolerances = [
            tolerance.of_output(output.dtype, error, sensitivity, self.precision)
            for output, error, sensitivity in zip(plain, errors, sensitivities, strict=True)
        ]
        if family == "own":
            self._own_rms = [tolerance.rms_of(one) for one in errors]
        elif widens:
            tolerances = [
                tolerance.widened_for_tiny(bound, like.dtype, tolerance.rms_of(one), own)
                for bound, like, one, own in zip(tolerances, plain, errors, self._own_rms_for(errors), strict=True)
            ]
        if family in BY_LARGEST_INPUT and not self._scales_with_inputs():
            slack = tolerance.slack_for_large(tensors_of(inputs))
            tolerances = [
                replace(bound, rtol=bound.rtol + slack, relative=bound.relative + slack) if floating(like) else bound
                for bound, like in zip(tolerances, plain, strict=True)
            ]
        magnitudes = [
            None
            if places is None
            else tolerance.magnitudes_of(
                wanted.reshape(-1)[places].abs(), torch.maximum(mine, moved), like.dtype == torch.float64
            )
            for places, wanted, like, mine, moved in zip(some, exact, plain, errors_there, shaken_there, strict=True)
        ]
        afterwards = dict(zip(changed, zip(exact[made:], tolerances[made:], strict=True), strict=True))
        return Sample(
            inputs,
            tensors_of(inputs),
            cotangents,
            exact[:made],
            tolerances[:made],
            magnitudes[:made],
            gathered,
            family,
            afterwards,
        )

    def _own_rms_for(self, errors: list[ComparisonResult]) -> list[float]:
        """Root mean squares on the task's own inputs; where none is known, on these."""
        return [own or tolerance.rms_of(one) for own, one in zip_longest(self._own_rms, errors)][: len(errors)]

    def _gathered(self, inputs: list[Any], cotangents: list[Tensor], exact: list[Tensor]) -> list[Gathered | None]:
        """How outputs of integers are compared that a rounding error of the inputs changes, as it does the order of
        nearly equal numbers."""
        if all(floating(one) or one.dtype == torch.bool for one in exact):
            return [None] * len(exact)
        sources = [one for one in [*tensors_of(inputs), *exact] if floating(one)]
        found: list[Gathered | None] = [None] * len(exact)
        for moves_zeros in (False, True):
            pair = self._moved_both_ways(inputs, moves_zeros)
            ways = (self.reference.own_outputs(moved, cotangents)[: len(exact)] for moved in pair)
            for index, (a, b, like) in enumerate(zip(*ways, exact, strict=True)):
                if found[index] is None and not floating(a) and not torch.equal(a, b):
                    place = gathered_of(like, sources)
                    if place is not None and moves_zeros and place.source.shape == like.shape:
                        continue  # the sign of each zero, say
                    found[index] = place
        return found

    def _moved_both_ways(self, inputs: list[Any], moves_zeros: bool) -> tuple[list[Any], list[Any]]:
        """The inputs, each number moved a little, and each moved the other way: two equal numbers change their order
        from one to the other."""
        noises: list[Tensor] = []
        for one in tensors_of(inputs):
            noises.append(torch.randn(one.shape, generator=self.reference.draws.rng, device=one.device))

        def moved(sign: float) -> list[Any]:
            left = iter(noises)

            def move(one: Tensor) -> Tensor:
                noise = next(left)
                if not floating(one) or one.is_complex():
                    return one.clone()
                new = one * (1 + sign * NEARLY / 4 * noise)
                if moves_zeros:
                    new = torch.where(one == 0, sign * ZERO_NOISE * noise, new)
                return new.to(one.dtype)

            return map_tensors(inputs, move)

        return moved(1.0), moved(-1.0)

    def _scales_with_inputs(self) -> bool:
        """Whether the outputs for inputs that are 1e-4 as large are a multiple of those for the inputs as they are. A
        product of matrices is such a task, tanh is none."""
        if self._is_homogeneous is None:
            try:
                self._is_homogeneous = self._is_multiple_for_shrunk_inputs()
            except torch.OutOfMemoryError:
                raise
            except Exception:  # a reference that insists on a dtype
                self._is_homogeneous = False
        return self._is_homogeneous

    def _is_multiple_for_shrunk_inputs(self) -> bool:
        own, places = self.reference.own_inputs(), list[Tensor]()
        found = []
        for change in (_doubled, _shrunk):
            outputs = tensors_of(self.reference.outputs(self.reference.exact, map_tensors(own, change), []))
            outputs = [one for one in outputs if floating(one)]
            places = places or [tolerance.places_of(one) for one in outputs]
            found.append([one.reshape(-1)[at] for one, at in zip(outputs, places, strict=True)])
            del outputs
        return all(_is_multiple(a, b) for a, b in zip(*found, strict=True))

    def _has_own_output_shapes(self, family: str, outputs: list[Tensor]) -> bool:
        """Whether the outputs have the shapes of the outputs for the task's own inputs.

        Raises:
            Unsteady: these inputs are the task's own, and the shapes are not those of the call before.
        """
        shapes = [one.shape for one in outputs]
        if family == "own":
            self._output_shapes = self._output_shapes or shapes
            if shapes != self._output_shapes:
                raise Unsteady("its outputs have other shapes from call to call")
        return self._output_shapes in (None, shapes)

    def _refuse_unsteady(self, inputs: list[Any], cotangents: list[Tensor], outputs: list[Tensor]) -> None:
        """Refuse a reference whose second call on the same inputs returns something else: no candidate could compute
        what depends on chance or on earlier calls. Sums in another order are near enough."""
        again = self.reference.own_outputs(inputs, cotangents)
        self._is_steady = [one.shape for one in again] == [one.shape for one in outputs]
        if self._is_steady:
            results = read_comparisons([ops.compare(a, b) for a, b in zip(again, outputs, strict=True)])
            integers = [one for one, like in zip(results, outputs, strict=True) if not floating(like)]
            self._is_steady = all(one.matches for one in integers) and not self._ill_conditioned(outputs, results)
        if not self._is_steady:
            raise Unsteady("two calls on the same inputs differ")

    def _shaken(self, tensor: Tensor) -> Tensor:
        """An input in float64, each number moved by at most one rounding error of float32. Whole numbers stay."""
        is_small = tensor.numel() <= SMALL_ELEMENTS
        if not tensor.is_floating_point() or (not is_small and is_whole(tensor)):
            return _doubled(tensor)
        moves = ~whole(tensor) if is_small else True
        noise = torch.rand(tensor.shape, generator=self.reference.draws.rng, device=tensor.device, dtype=torch.float64)
        eps = torch.finfo(torch.float64 if tensor.dtype == torch.float64 else torch.float32).eps
        noise.mul_(2).sub_(1).mul_(eps).mul_(moves)  # in place, since it may be large
        return noise.add_(1).mul_(tensor)

    def _exact_outputs(
        self,
        inputs: list[Any],
        change: Callable[[Tensor], Tensor],
        cotangents: list[Tensor],
        plain: list[Tensor],
        written: Sequence[int] = (),
    ) -> list[Tensor]:
        """The oracle's outputs, which the oracle may keep references to.

        Args:
            inputs: in the task's precision.
            change: makes of each input tensor what the oracle is given, in float64.
            cotangents: gradients of the outputs, if gradients are checked.
            plain: the reference's outputs. They stand in for the oracle's where these are integers or bools, and where
                the oracle fails.
            written: numbers of the inputs that the reference writes to. They are returned after the outputs.
        """
        doubled = map_tensors(inputs, change)
        reference = self.reference
        try:
            exact = tensors_of(reference.outputs(reference.exact, doubled, [_doubled(one) for one in cotangents]))
            exact += [tensors_of(doubled)[index] for index in written]
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a reference that insists on a dtype is its own oracle
            exact = plain
        return [mine if floating(like) else like for mine, like in zip(exact, plain, strict=True)]

    def _ill_conditioned(self, plain: list[Tensor], compared: list[ComparisonResult]) -> str:
        """Why these inputs tell nothing, or an empty string."""
        for output, result in zip(plain, compared, strict=True):
            if not floating(output):
                continue
            bound = MAX_REFERENCE_ERROR.get(output.dtype, 2e-4)
            if self.precision == "tf32" and output.dtype == torch.float32:
                bound = MAX_TF32_ERROR
            if output.numel() and result.nan_added + result.inf_added + result.nan_missing + result.inf_missing:
                return "the reference overflows where the exact result does not"
            if output.numel() and not result.relative_error <= bound:
                return f"float32's rounding alone moves the result by {result.relative_error:.1e}, more than {bound:g}"
        return ""


def _errors_at(places: Sequence[Tensor | None], found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[Tensor]:
    """Absolute errors at some places of each output; empty where there are no places."""
    return [
        (a.reshape(-1)[at].to(b.dtype) - b.reshape(-1)[at]).abs() if at is not None else b.new_empty(0)
        for at, a, b in zip(places, found, exact, strict=True)
    ]


def _shrunk(tensor: Tensor) -> Tensor:
    return _doubled(tensor) * 1e-4 if floating(tensor) else tensor.clone()


def _is_multiple(one: Tensor, other: Tensor) -> bool:
    """Whether the second vector is the first one times a number."""
    factor = (one.conj() * other).sum() / (one.conj() * one).sum()
    return bool((other - factor * one).norm() <= 1e-3 * other.norm())


def _doubled(tensor: Tensor) -> Tensor:
    """A copy, in double precision unless it holds integers or bools."""
    if not floating(tensor):
        return tensor.clone()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)


def _with_zeros(tensor: Tensor) -> Comparison:
    """A comparison with zeros, which counts the numbers that are not finite."""
    return ops.compare(tensor, tensor.new_zeros(()).expand_as(tensor))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits."""
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
