"""Candidates that compute nothing. If one of them passed on a task, the task would reward computing nothing."""

from __future__ import annotations

from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.examiner.refusals import Refused
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.wire.trees import floating
from kernel_coder.ops.compare import read_comparisons

KEPT_ELEMENTS = 1 << 25
"""Upper limit of the elements of an output that are kept for the next sample: 256 MiB in float64."""

OTHER_OUTPUT = "another call's output"


class NullCandidates:
    """Tries candidates that return zeros, ones, the mean of the result, an input, or the result of another call.

    They take little memory: a constant is stored once and expanded. Of another call's output only some elements are
    kept, evenly spread. A candidate that passes on so many elements would almost certainly pass on all.
    """

    def __init__(self) -> None:
        self.passing = dict.fromkeys(["zeros", "ones", "the mean", "an input", OTHER_OUTPUT])
        """Names of the null candidates that have passed on every sample so far, in order."""

        self._before: list[Tensor] | None = None
        self._samples = 0

    def refuse(self) -> None:
        """Raise Refused if a null candidate has passed on every sample; for another call's output, on two at least."""
        passed = [name for name in self.passing if self._samples > (name == OTHER_OUTPUT)]
        if passed:
            raise Refused(f"a candidate that returns {passed[0]} would pass")

    def try_on(self, sample: Sample) -> None:
        """Drop the null candidates that fail on this sample."""
        if not self.passing:
            return
        self._samples += 1
        some = [some_of(one) for one in sample.expected]
        for name in list(self.passing):
            is_another = name == OTHER_OUTPUT
            if is_another and self._before is None:
                continue
            expected = some if is_another else sample.expected
            made = [self._output(name, index, wanted, sample) for index, wanted in enumerate(expected)]
            found = [one for one in made if one is not None]
            if len(found) < len(made):
                del self.passing[name]
                continue
            results = read_comparisons(
                [
                    ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                    for one, wanted, allowed in zip(found, expected, sample.tolerances, strict=True)
                ]
            )
            if not all(allowed.passes(one) for allowed, one in zip(sample.tolerances, results, strict=True)):
                del self.passing[name]
        self._before = some if OTHER_OUTPUT in self.passing else None

    def _output(self, name: str, index: int, wanted: Tensor, sample: Sample) -> Tensor | None:
        """Return what a null candidate returns as output number `index`; None if it has nothing of that shape."""
        if name == "zeros":
            return wanted.new_zeros(()).expand_as(wanted)
        if name == "ones":
            return wanted.new_ones(()).expand_as(wanted)
        if name == "the mean":
            if not floating(wanted) or wanted.numel() <= 1:
                return None
            return wanted.mean().expand_as(wanted)
        if name == OTHER_OUTPUT:
            assert self._before is not None
            return self._before[index] if self._before[index].shape == wanted.shape else None
        for one in sample.tensors:
            alike = floating(one) == floating(wanted) and one.is_complex() == wanted.is_complex()
            if alike and one.numel() >= wanted.numel() > 0:
                taken = one.reshape(-1)[: wanted.numel()].reshape(wanted.shape)
                return taken if floating(wanted) else taken.to(wanted.dtype)
        return None


def some_of(output: Tensor) -> Tensor:
    """Return the output itself, or a copy of at most :data:`KEPT_ELEMENTS` of its elements, evenly spread."""
    if output.numel() <= KEPT_ELEMENTS:
        return output
    return output.reshape(-1)[:: -(-output.numel() // KEPT_ELEMENTS) | 1].clone()
