"""Sends requests to both Runners, one after another, and compares every output of the candidate.

No other process may use the device during timing, so as little as possible is done then. Inputs and expected outputs
of several requests are made beforehand, in the Examiner's own memory. They are copied to shared memory one request at
a time. The candidate's outputs are copied back, and compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from kernel_coder import ops
from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.timing.clock import Answer, Asked, RequestClock
from kernel_coder.judge.examiner.timing.requests import Request, RequestMaker, each_call
from kernel_coder.judge.examiner.timing_constants import TIMING
from kernel_coder.judge.examiner.timing_records import Party
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.gpu.turns import Turn
from kernel_coder.judge.verdict import Outcome
from kernel_coder.ops.compare import Comparison, ComparisonResult, read_comparisons


class Requester:
    """Sends requests to the candidate's Runner and to the reference's, and checks the answers."""

    def __init__(self, checker: Checker, reference: Link) -> None:
        self.checker, self.reference, self.turns = checker, reference, checker.turns
        self.maker, self.clock = RequestMaker(checker), RequestClock(checker)
        self._staged_bytes = TIMING[checker.task.device.type].staged_bytes
        self._prepared = 0

    def room(self, calls: int) -> int:
        """Return how many rounds of `calls` calls can be made beforehand."""
        return self._staged_bytes // self.maker.bytes_of(calls)

    def answers(
        self,
        parties: Sequence[Party],
        calls: int,
        *,
        timed: bool = True,
        around: Callable[[], None] | None = None,
    ) -> list[Answer]:
        """Send one request for each of `parties`, in this order, and return the answers.

        Args:
            parties: purpose of each request.
            calls: number of calls of each request.
            timed: whether no other process may use the device meanwhile.
            around: called before and after the requests, while no other process may use the device.

        Raises:
            Judged: an output of the candidate is wrong.
        """
        self._prepare(calls)
        is_kept = self.room(calls) > 0
        with self.turns.shared() as turn:
            self.clock.draw_places(calls)
            requests = self._requests(parties, calls, turn) if is_kept else None
            if not timed:
                answers = self._answered(parties, calls, requests)
                turn.pause()
                self._check(answers)
                return answers
        with self.turns.alone():
            if around is not None:
                around()
            answers = self._answered(parties, calls, requests)
            if around is not None:
                around()
        with self.turns.shared():
            self._check(answers)
        return answers

    def _prepare(self, calls: int) -> None:
        """Ask the Runners to prepare for this many calls."""
        if calls > self._prepared:
            for link in dict.fromkeys((self.reference, self.checker.link)):
                link.prepare(calls)
            self._prepared = calls

    def free_memory(self) -> None:
        """Have the Runners give back memory that they keep for the next call, if the task is large. After timed calls
        they keep it, and the Examiner may lack it for the next inputs."""
        if self.checker.task.is_large:
            for link in dict.fromkeys((self.reference, self.checker.link)):
                link.prepare(0)

    def _requests(self, parties: Sequence[Party], calls: int, turn: Turn) -> list[Request | None]:
        """Make requests beforehand. To save work, the reference gets inputs that the candidate has had before; the
        candidate never gets the reference's."""
        requests: list[Request | None] = []
        known: Request | None = None  # a request that the candidate answers earlier
        for party in parties:
            turn.pause()
            request: Request | None = None
            if party == "candidate":
                request = self.maker.make(calls, True, True)
                known = known if request.strange else request
            elif party == "reference":
                request = self.maker.make(calls, False, True) if known is None else known.for_reference()
            requests.append(request)
        return requests

    def _answered(self, parties: Sequence[Party], calls: int, requests: list[Request | None] | None) -> list[Answer]:
        """Send the requests and return the answers. Requests that were not made beforehand are made one at a time, and
        the answer to each is checked before the next one is made."""
        if requests is not None:
            return self.clock.measure_all([self._asked(*one, calls) for one in zip(parties, requests, strict=True)])
        answers: list[Answer] = []
        for party in parties:
            request: Request | None = None
            if party in ("reference", "candidate"):
                request = self.maker.make(calls, party == "candidate", False)
            (answer,) = self.clock.measure_all([self._asked(party, request, calls)])
            self._check([answer])
            answers.append(Answer(*answer[:2]))
            del request, answer  # frees their memory before the next one is made
        return answers

    def _asked(self, party: Party, request: Request | None, calls: int) -> Asked:
        """Return a party's request."""
        link = self.checker.link if party == "candidate" else self.reference
        return Asked(link, 1 if party == "single" else calls, request)

    def _check(self, answers: list[Answer]) -> None:
        """Compare all outputs of the candidate, as they were when the clock stopped. Raise Judged if one is wrong."""
        own = [(one, one.request, one.found) for one in answers if one.request is not None and one.found is not None]
        if not own:
            return
        maker, specs = self.maker, self.maker.variant.output_specs
        comparisons: list[Comparison] = []
        others: list[Callable[[], bool]] = []  # for each comparison, whether integers that differ are right, too
        for _, request, found in own:
            stride = maker.variant.output_stride
            outputs = [each_call(found, spec, stride, request.calls) for spec in specs]
            if request.strange is not None:  # its outputs are compared with its own sample
                call, sample = request.strange
                for index, (output, expected, wanted, allowed) in enumerate(
                    zip(outputs, request.expected, sample.expected, sample.tolerances, strict=True)
                ):
                    expected[call].copy_(output[call])
                    comparisons.append(ops.compare(output[call], wanted, rtol=allowed.rtol, atol=allowed.atol))
                    others.append(partial(sample.has_same_integers, index, output[call]))
            for index, (output, expected, allowed) in enumerate(
                zip(outputs, request.expected, maker.tolerances, strict=True)
            ):
                comparisons.append(ops.compare(output, expected, rtol=allowed.rtol, atol=allowed.atol))
                others.append(partial(maker.has_same_integers, request, index, output))
        results = iter(
            one.without_errors() if not one.matches and are_right() else one
            for one, are_right in zip(read_comparisons(comparisons), others, strict=True)
        )
        for _, request, _ in own:
            if request.strange is not None:
                self._refuse(request.strange[1].family, request.strange[1].tolerances, [next(results) for _ in specs])
            self._refuse("own", maker.tolerances, [next(results) for _ in specs])
        seen_again = torch.stack([found[self.clock.places] for _, _, found in own])
        if not torch.equal(seen_again, torch.stack([one.seen for one, _, _ in own if one.seen is not None])):
            raise Judged(Outcome.REJECTED, "it wrote to an output after it had answered")
        if self.checker.task.reference.changes_inputs:
            return
        for answer, request, _ in own:
            assert answer.hashes is not None
            assert request.hashes is not None
            if not torch.equal(answer.hashes, request.hashes):
                raise Judged(Outcome.WRONG_OUTPUT, "it wrote to an input in a timed call")

    def _refuse(self, family: str, tolerances: Sequence[Tolerance], results: list[ComparisonResult]) -> None:
        """Raise Judged if an output is too far from the expected one. Each comparison covers all calls of a request."""
        specs = self.maker.variant.output_specs
        of_call = [
            one
            if one.first is None
            else one._replace(first=one.first % max(1, spec.nbytes // spec.torch_dtype.itemsize))
            for one, spec in zip(results, specs, strict=True)
        ]
        self.checker.refuse_values(self.maker.variant, family, tolerances, of_call, when="In a timed call: ")
