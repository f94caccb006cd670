"""Samples: the inputs of one call, the expected outputs, and the tolerance of each output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.examiner import tolerance
from kernel_coder.judge.examiner.exponents import MAX_GRADIENT_EXPONENT, Exponents, ExponentWatch, observed
from kernel_coder.judge.examiner.gathered import Gathered, PlaceFinder, Rounded
from kernel_coder.judge.examiner.input_families import RANGE_FACTORS, is_whole, whole
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.refusals import Refused, Unsteady
from kernel_coder.judge.examiner.scaling import scales_with_inputs
from kernel_coder.judge.examiner.widened import doubled
from kernel_coder.judge.wire.trees import floating, is_real, map_tensors, tensors_of
from kernel_coder.ops.compare import Comparison, ComparisonResult, read_comparisons

SMALL_ELEMENTS = 1 << 20
"""Upper limit of the elements of an input whose patterns are computed without first asking the device whether there are
any: that question would take longer than the computation."""

MAX_REFERENCE_ERROR = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Upper limit of the relative error of the reference itself, by dtype of the output. If the reference is less exact,
comparing a candidate with it shows nothing."""

MAX_TF32_ERROR = 5e-3
"""The same limit for tasks in TF32, whose products have errors of about a thousandth."""

BY_MAGNITUDE = frozenset({"own", "normal", "outlier"})
"""Families on which small elements have smaller bounds. On other families an honest kernel may lose small numbers:
log(1 + exp(x)) does at -20."""

BY_LARGEST_INPUT = frozenset({"huge", "offset", "negative", "outlier"})
"""Families with inputs so large that their rounding errors matter if the output depends on differences."""

WITH_SMALLER_RANGES = frozenset({"huge", "offset", "negative"})
"""Families of large inputs that are drawn again with smaller numbers if the reference is too inexact on them."""

WIDENED = BY_LARGEST_INPUT | {"tiny"}
"""Families on which the tolerance is wider for a task that is not a multiple of its inputs' scale."""

NOT_COMPARED = tolerance.Tolerance(rtol=0.0, atol=sys.float_info.max, relative=float("inf"), reference_error=0.0)
"""The tolerance of an output that may have any finite values."""

MAX_NOT_FINITE = 0.5
"""Upper limit of the share of an output's elements that may be infinite or NaN: too few others would be left."""


@dataclass
class Sample:
    """The inputs of one call and what is expected of its outputs."""

    inputs: list[Any]
    tensors: list[Tensor]
    """The tensors in `inputs`."""

    cotangents: list[Tensor]
    """Gradients of the outputs; empty if gradients are not checked."""

    expected: list[Tensor]
    """The oracle's outputs. Integers and bools are the reference's."""

    tolerances: list[tolerance.Tolerance]
    """Tolerance of each output."""

    magnitudes: list[tolerance.Magnitudes | None]
    """For each output, how much smaller the bound is for small elements; None: it is the same for all."""

    gathered: list[Gathered | Rounded | None]
    """For each output of integers that a rounding error of the inputs may change, how it is compared; None: exactly."""

    family: str
    changed: dict[int, tuple[Tensor, tolerance.Tolerance]]
    """Expected values and tolerances of the inputs that the reference itself writes to, by the input's number."""

    def has_same_integers(self, index: int, output: Tensor) -> bool:
        """Return whether an output of integers that differs from the expected one is right, too: its places point to
        equal numbers, or its numbers are rounded the other way."""
        gathered = self.gathered[index]
        return gathered is not None and gathered.same(output, self.expected[index])


class SampleMaker:
    """Draws samples of a reference and leaves out those on which the reference itself is too inexact."""

    def __init__(self, reference: Reference, precision: str) -> None:
        self.reference, self.precision = reference, precision
        self._output_shapes: list[torch.Size] | None = None
        self._own_rms: list[float] = []
        self._own_exponents = Exponents()
        self._is_homogeneous: bool | None = None
        self._is_steady = False
        self.places = PlaceFinder(reference)
        self._reaches: dict[str, int] = {}
        """By family, the index of the largest reach on which the reference could be used so far."""

    def sample(self, family: str, get_inputs: Callable[[], Any] | None = None, tries: int = 5) -> Sample:
        """Return a sample of a family. The caller must have a turn on the device.

        Args:
            family: name of the input family.
            get_inputs: draws inputs of other sizes; None: the task's own function.
            tries: how often inputs are drawn until the reference is exact enough. The present range of row sizes is
                tried twice, because one softmax in a hundred is inexact by chance. Then smaller ranges are tried.

        Raises:
            Refused: the reference was too inexact on all of them.
        """
        found: Sample | str = ""
        first = self._reaches.get(family, 0)
        for number in (first, *range(first, first + tries - 1)):
            reach = RANGE_FACTORS[min(number, len(RANGE_FACTORS) - 1)]
            found = self.try_sample(family, get_inputs, reach)
            if isinstance(found, Sample):
                self._reaches[family] = min(number, len(RANGE_FACTORS) - 1)
                return found
        raise Refused(f"on inputs of the family {family}, {found}")

    def try_sample(self, family: str, get_inputs: Callable[[], Any] | None = None, reach: float = 1.0) -> Sample | str:
        """Draw inputs once. Return a sample of them, or the reason why they cannot be used.

        For inputs of I bytes and outputs of O bytes in single precision, this takes the larger of 3 I + 4 O and I + 5 O
        bytes, in addition to what the reference itself allocates in its call
        (:func:`kernel_coder.judge.examiner.memory_estimates.judging_bytes`).
        """
        reference = self.reference
        # Now, before large tensors are allocated.
        widens = family in WIDENED and not self._scales_with_inputs()
        inputs = reference.inputs_of(family, get_inputs, reach)
        copies = map_tensors(inputs, Tensor.clone) if reference.changes_inputs else inputs
        is_watched = family in WITH_SMALLER_RANGES or (reference.config.backward and family != "own")
        watch = ExponentWatch() if is_watched and any(self._own_exponents) else None
        try:
            if reference.may_stop_gpu and family != "own":
                reference.try_on_cpu(inputs)
            cotangents = reference.cotangents_of(inputs, family)
            with watch or nullcontext():
                plain = tensors_of(reference.outputs(reference.module, copies, cotangents))
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if family == "own":
                raise
            return f"the reference raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        seen = watch.seen() if watch is not None else Exponents()
        if family in WITH_SMALLER_RANGES and seen.exceed(self._own_exponents):
            return "the reference computes exponentials of numbers for which float32 is too inexact"
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
        exact = self._exact_outputs(inputs, cotangents, plain, changed)
        exact = [doubled(mine) if floating(like) else like for mine, like in zip(exact, plain, strict=True)]
        compared = [ops.compare(a, b) for a, b in zip(plain, exact, strict=True)]
        some = [tolerance.places_of(one) if family in BY_MAGNITUDE and floating(one) else None for one in exact]
        errors_there = _errors_at(some, plain, exact)
        plain = [one.to("meta") for one in plain]  # the numbers are not needed any more
        shaken = self._shaken_outputs(inputs, cotangents, exact, changed)
        compared += [ops.compare(a, b) for a, b in zip(shaken, exact, strict=True)]
        shaken_there = _errors_at(some, shaken, exact)
        del shaken
        rounded_there = self._errors_of_rounding(some, inputs, cotangents, plain, exact)
        gathered = self.places.find(family, inputs, cotangents, exact[:made])
        if family != "own" and self.places.is_by_order:
            return "the order of equal numbers decides the reference's result"
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
        elif widens and family not in BY_LARGEST_INPUT:
            tolerances = [
                tolerance.widened_for_tiny(bound, like.dtype, tolerance.rms_of(one), own)
                for bound, like, one, own in zip(tolerances, plain, errors, self._own_rms_for(errors), strict=True)
            ]
        elif widens:
            slack = tolerance.slack_for_large(tensors_of(inputs))
            tolerances = [
                replace(bound, rtol=bound.rtol + slack, relative=bound.relative + slack) if floating(like) else bound
                for bound, like in zip(tolerances, plain, strict=True)
            ]
        magnitudes = [
            None
            if places is None
            else tolerance.magnitudes_of(
                wanted.reshape(-1)[places].abs(), torch.stack(known).amax(0), like.dtype == torch.float64
            )
            for places, wanted, like, *known in zip(
                some, exact, plain, errors_there, shaken_there, rounded_there, strict=True
            )
        ]
        if cotangents and seen.exceed(self._own_exponents, MAX_GRADIENT_EXPONENT):
            gradients = range(made - reference.count_gradients(inputs), made)
            tolerances = [NOT_COMPARED if at in gradients else one for at, one in enumerate(tolerances)]
            magnitudes = [None if at in gradients else one for at, one in enumerate(magnitudes)]
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
        """Return the outputs' root mean squares for the task's own inputs; where unknown, for these inputs."""
        return [own or tolerance.rms_of(one) for own, one in zip_longest(self._own_rms, errors)][: len(errors)]

    def _scales_with_inputs(self) -> bool:
        if self._is_homogeneous is None:
            self._is_homogeneous = scales_with_inputs(self.reference)
        return self._is_homogeneous

    def _has_own_output_shapes(self, family: str, outputs: list[Tensor]) -> bool:
        """Return whether the outputs have the same shapes as those for the task's own inputs.

        Raises:
            Unsteady: the inputs are the task's own, and the shapes differ from those of an earlier call.
        """
        shapes = [one.shape for one in outputs]
        if family == "own":
            self._output_shapes = self._output_shapes or shapes
            if shapes != self._output_shapes:
                raise Unsteady("its outputs have other shapes from call to call")
        return self._output_shapes in (None, shapes)

    def _refuse_unsteady(self, inputs: list[Any], cotangents: list[Tensor], outputs: list[Tensor]) -> None:
        """Raise Unsteady if a second call on the same inputs returns something else: no candidate can compute what
        depends on chance or on earlier calls. Differences as small as from another order of summation are allowed."""
        again, self._own_exponents = observed(lambda: self.reference.own_outputs(inputs, cotangents))
        self._is_steady = [one.shape for one in again] == [one.shape for one in outputs]
        if self._is_steady:
            results = read_comparisons([ops.compare(a, b) for a, b in zip(again, outputs, strict=True)])
            integers = [one for one, like in zip(results, outputs, strict=True) if not floating(like)]
            self._is_steady = all(one.matches for one in integers) and not self._ill_conditioned(outputs, results)
        if not self._is_steady:
            raise Unsteady("two calls on the same inputs differ")

    def _errors_of_rounding(
        self,
        places: Sequence[Tensor | None],
        inputs: list[Any],
        cotangents: list[Tensor],
        plain: list[Tensor],
        exact: list[Tensor],
    ) -> list[Tensor]:
        """Return, at some places of each output, how much it changes if each input of 16 or 8 bits changes by a
        rounding error of the outputs' 16 bits; zeros if inputs or outputs are wider.

        Where the reference computes in float32, its own errors are smaller. But a kernel for such inputs may hold an
        intermediate value in 16 bits, as FlashAttention holds probabilities. For a sum of numbers of both signs, that
        error is as large for a small result as for a large one.
        """
        zeros = [exact[0].new_zeros(0 if at is None else len(at), dtype=torch.float64) for at in places]
        epses = [torch.finfo(one.dtype).eps / 2 for one in plain if is_real(one) and one.dtype.itemsize == 2]
        is_narrow = any(one.is_floating_point() and one.dtype.itemsize <= 2 for one in tensors_of(inputs))
        if not epses or not is_narrow or all(at is None for at in places):
            return zeros

        def rounded(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or tensor.dtype.itemsize > 2:
                return doubled(tensor)
            wide = tensor.bfloat16() if tensor.dtype.itemsize == 1 else tensor  # torch multiplies no 8-bit numbers
            return self._shaken(wide, max(epses))

        try:
            found = self._oracle_outputs(inputs, rounded, cotangents, [])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return zeros
        if found is None:
            return zeros
        made = len(found)  # without the inputs that the reference writes to
        return _errors_at(places[:made], _floating_of(found, exact[:made]), exact[:made]) + zeros[made:]

    def _shaken(self, tensor: Tensor, eps: float | None = None) -> Tensor:
        """Return an input in float64, each number moved by at most `eps` of itself; None: a rounding error of float32.
        Whole numbers stay."""
        is_small = tensor.numel() <= SMALL_ELEMENTS
        if not is_real(tensor) or (not is_small and is_whole(tensor)):
            return doubled(tensor)
        moves = ~whole(tensor) if is_small else True
        noise = torch.rand(tensor.shape, generator=self.reference.draws.rng, device=tensor.device, dtype=torch.float64)
        eps = eps or torch.finfo(torch.float64 if tensor.dtype == torch.float64 else torch.float32).eps
        noise.mul_(2).sub_(1).mul_(eps).mul_(moves)  # in place, since it may be large
        return noise.add_(1).mul_(tensor)

    def _shaken_outputs(
        self, inputs: list[Any], cotangents: list[Tensor], exact: list[Tensor], written: Sequence[int]
    ) -> list[Tensor]:
        """Return the oracle's outputs for shaken inputs, or the reference's if the oracle fails or the GPU lacks
        memory for it. Then the reference's own rounding errors count too, and so do random numbers that it draws in a
        call: tolerances become wider.

        Args:
            inputs: in the task's precision.
            cotangents: gradients of the outputs; empty if gradients are not checked.
            exact: the outputs for inputs that are not shaken.
            written: numbers of the inputs that the reference writes to. They are returned after the outputs.
        """
        try:
            found = self._oracle_outputs(inputs, self._shaken, cotangents, written)
        except torch.OutOfMemoryError:
            found = None
            torch.cuda.empty_cache()
        if found is not None:
            return _floating_of(found, exact)
        shaken = map_tensors(inputs, lambda one: self._shaken(one).to(one.dtype))
        found = tensors_of(self.reference.outputs(self.reference.module, shaken, cotangents))
        return _floating_of([*found, *(tensors_of(shaken)[index] for index in written)], exact)

    def _exact_outputs(
        self, inputs: list[Any], cotangents: list[Tensor], plain: list[Tensor], written: Sequence[int]
    ) -> list[Tensor]:
        """Return the oracle's outputs. The oracle may keep references to them. The arguments are those of
        :meth:`_shaken_outputs`; `plain` has the reference's outputs. They replace the oracle's where these are integers
        or bools, and all of them if the oracle fails."""
        exact = self._oracle_outputs(inputs, doubled, cotangents, written)
        return plain if exact is None else _floating_of(exact, plain)

    def _oracle_outputs(
        self,
        inputs: list[Any],
        change: Callable[[Tensor], Tensor],
        cotangents: list[Tensor],
        written: Sequence[int],
    ) -> list[Tensor] | None:
        """Return the oracle's outputs, where `change` converts each input to the float64 tensor that the oracle gets.
        None: the oracle fails, because the reference works only in its own dtype."""
        wide_inputs, wide_cotangents = map_tensors(inputs, change), [doubled(one) for one in cotangents]
        reference = self.reference
        try:
            exact = tensors_of(reference.outputs(reference.exact, wide_inputs, wide_cotangents))
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return None
        return [*exact, *(tensors_of(wide_inputs)[index] for index in written)]

    def _ill_conditioned(self, plain: list[Tensor], compared: list[ComparisonResult]) -> str:
        """Return why these inputs cannot be used, or an empty string."""
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


def _floating_of(found: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Return the first tensors, with those of `like` in the place of integers and bools."""
    return [mine if floating(other) else other for mine, other in zip(found, like, strict=True)]


def _errors_at(places: Sequence[Tensor | None], found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[Tensor]:
    """Return the absolute errors at some places of each output; none where `places` is None."""
    return [
        (a.reshape(-1)[at].to(b.dtype) - b.reshape(-1)[at]).abs() if at is not None else b.new_empty(0)
        for at, a, b in zip(places, found, exact, strict=True)
    ]


def _with_zeros(tensor: Tensor) -> Comparison:
    """Compare with zeros. The result counts the numbers that are not finite."""
    return ops.compare(tensor, tensor.new_zeros(()).expand_as(tensor))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of the same shape and dtype have the same bits."""
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
