"""Checks of the outputs in shared memory, and the feedback if they are wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge import feedback
from kernel_coder.judge.examiner.input_families import INPUT_FAMILIES
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.examiner.source_checks import speaks_of_streams
from kernel_coder.judge.examiner.task_memory import Variant, outputs_at
from kernel_coder.judge.examiner.tolerance import MAX_OFF_SHARE, SAMPLED, Tolerance, places_of
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.messages import Loaded
from kernel_coder.ops.compare import ComparisonResult, read_comparisons

TF32_ERROR = 5e-3
"""Upper limit of the relative error of products in TF32."""

TF32_HINT = (
    "tl.dot runs in TF32 by default, and Triton makes such a dot of tl.sum(a[:, :, None] * b[None, :, :], axis=1); use "
    "tl.dot with input_precision='ieee' for float32."
)
_SUM_OF_PRODUCTS = re.compile(r"\w\[:, :, None\] \* \w+\[None, :, :\]")


def computes_tf32(source: str) -> bool:
    """Return whether Triton may compute a matrix product of this source in TF32.

    Its compiler replaces a sum of broadcast products by a dot (CombineBroadcastMulReducePattern), also in TF32.

    >>> computes_tf32("tl.dot(a, b)"), computes_tf32("tl.dot(a, b, input_precision='ieee')")
    (True, False)
    >>> computes_tf32("tl.sum(a[:, :, None] * b[None, :, :], axis=1)")
    True
    """
    if _SUM_OF_PRODUCTS.search(source):
        return True
    return "tl.dot" in source and "input_precision" not in source and "allow_tf32" not in source


LOADING_NOTES = {
    Loaded.BY_ORDER: "\nIts parameters have other names than the reference's and were filled in order.",
    Loaded.BY_SEED: "\nIts parameters do not fit the reference's by name or shape and were left as it drew them.",
}
"""Added to feedback about wrong values: how the parameters were loaded may be the cause."""


class OutputChecker:
    """Compares the outputs of one candidate. Raises Judged if they are wrong."""

    def __init__(self, task: PreparedTask, link: Link, source: str) -> None:
        """
        Args:
            task: the task that the candidate solves.
            link: the link to the candidate's Runner.
            source: the candidate's source.
        """
        self.task, self.link, self.source = task, link, source
        self.errors: dict[str, dict[str, Any]] = {}
        """The worst comparison of each output by the output's name, as fields of ``verdict.OutputError``."""

        self.when = ""
        """What is special about the current calls. The description of the inputs in feedback begins with it."""

        self.near: dict[tuple[str, int], float] = {}
        """Largest relative error as a share of its bound, by family and number of the variant."""

        self.loaded = Loaded.NOTHING
        """How the reference's parameters were loaded into the candidate."""

    def refuse_outputs(self, variant: Variant, slot: int, sample: Sample, before: Tensor) -> None:
        """Raise Judged if the outputs of a call are wrong, or if its inputs were changed.

        Args:
            variant: sizes of the inputs.
            slot: slot of the call.
            sample: the sample whose inputs the call had.
            before: hashes of the inputs before the call.
        """
        results = self.compare(variant, slot, sample)
        self._record(variant, sample, results)
        self.refuse_values(variant, sample.family, sample.tolerances, results, self.when)
        part = max(
            (one.relative_error / t.relative for one, t in zip(results, sample.tolerances, strict=True) if t.relative),
            default=0.0,
        )
        key = sample.family, self.task.variants.index(variant)
        self.near[key] = max(part, self.near.get(key, 0.0))
        self._refuse_small_values(variant, slot, sample)
        self._refuse_changed_inputs(variant, slot, sample, before)

    def compare(self, variant: Variant, slot: int, sample: Sample) -> list[ComparisonResult]:
        """Compare the outputs in shared memory with the expected ones."""
        found = [one.clone() for one in outputs_at(self.link.outputs, variant, slot)]
        results = read_comparisons(
            [
                ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                for one, wanted, allowed in zip(found, sample.expected, sample.tolerances, strict=True)
            ]
        )
        return [
            one.without_errors() if not one.matches and sample.has_same_integers(index, output) else one
            for index, (one, output) in enumerate(zip(results, found, strict=True))
        ]

    def _refuse_small_values(self, variant: Variant, slot: int, sample: Sample) -> None:
        """Raise Judged if an element is wrong for its own magnitude, in an output with much larger ones."""
        looked_at = [(index, one) for index, one in enumerate(sample.magnitudes) if one is not None]
        if not looked_at:
            return
        found = outputs_at(self.link.outputs, variant, slot)
        counts = []
        for index, magnitudes in looked_at:
            wanted = sample.expected[index]
            places = places_of(wanted)
            counts.append(magnitudes.wrong(found[index], wanted, sample.tolerances[index], places))
        for (index, _), count in zip(looked_at, torch.stack(counts).tolist(), strict=True):
            of = min(sample.expected[index].numel(), SAMPLED)
            if count > MAX_OFF_SHARE * of:
                told = (
                    f"{variant.names[index]} has wrong small values: {count} of {of} elements have errors that are too"
                    " large for their own magnitude, although small compared to the largest elements."
                )
                where = describe_inputs(variant, f"{INPUT_FAMILIES[sample.family].description}, ")
                raise Judged(Outcome.WRONG_OUTPUT, told, f"{told}\n{where}")

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
        tolerances: Sequence[Tolerance],
        results: Sequence[ComparisonResult],
        when: str = "",
    ) -> None:
        """Raise Judged if an output differs from the expected one by more than its tolerance.

        Args:
            variant: sizes of the inputs.
            family: family of the inputs.
            tolerances: tolerance of each output.
            results: comparison of each output.
            when: text before the description of the inputs.
        """
        for name, spec, result, allowed in zip(variant.names, variant.output_specs, results, tolerances, strict=True):
            if result.mismatches:
                told = feedback.wrong_values(
                    name, result, shape=spec.shape, dtype=spec.dtype, rtol=allowed.rtol, atol=allowed.atol
                )
            elif not allowed.passes(result):
                told = (
                    f"{name} is less precise than the task asks for: its relative error is "
                    f"{result.relative_error:.2g}, more than {allowed.relative:.2g}; the reference's own is "
                    f"{allowed.reference_error:.2g}."
                )
            else:
                continue
            if self._may_be_tf32(result):
                told += f"\n{TF32_HINT}"
            where = when + describe_inputs(variant, f"{INPUT_FAMILIES[family].description}, ")
            if self.task.device.type == "cuda" and speaks_of_streams(self.source):
                where += " Streams of its own must wait for the caller's stream, and the caller's stream for them."
            told += LOADING_NOTES.get(self.loaded, "")
            raise Judged(Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\n{where}")

    def _may_be_tf32(self, result: ComparisonResult) -> bool:
        """Return whether the error may come from TF32."""
        is_small = 1e-6 < result.relative_error < TF32_ERROR
        return (
            is_small
            and self.task.device.type == "cuda"
            and self.task.precision == "fp32"
            and computes_tf32(self.source)
        )

    def _refuse_changed_inputs(self, variant: Variant, slot: int, sample: Sample, before: Tensor) -> None:
        """Raise Judged if the candidate changed an input, unless the reference writes the same values to it."""
        written = self.task.memory.written(variant, slot)
        after = self.task.fingerprint.of(written)
        for index, same in enumerate((before == after).tolist()):
            if index not in sample.changed and not same:
                raise Judged(Outcome.WRONG_OUTPUT, f"it wrote to input {index}, which the reference leaves as it is")
        if not sample.changed:
            return
        results = read_comparisons(
            [
                ops.compare(written[index], wanted, rtol=allowed.rtol, atol=allowed.atol)
                for index, (wanted, allowed) in sample.changed.items()
            ]
        )
        for (index, (_, allowed)), result in zip(sample.changed.items(), results, strict=True):
            if not allowed.passes(result):
                spec = variant.input_specs[index]
                told = feedback.wrong_values(
                    f"input {index}", result, shape=spec.shape, dtype=spec.dtype, rtol=allowed.rtol, atol=allowed.atol
                )
                raise Judged(
                    Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\nThe reference writes to input {index}."
                )


def describe_inputs(variant: Variant, kind: str = "") -> str:
    shapes = ", ".join(str(list(one.shape)) for one in variant.input_specs)
    said = f"Inputs: {kind}shapes {shapes}."
    if variant.sizes is not None:
        said += f" These sizes differ from the task's own ({variant.sizes}): ModelNew has to take them too."
    return said
