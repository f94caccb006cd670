"""Requests to both Runners, one after another, with every output of the candidate compared.

No other process may use the device while it is timed, so as little as possible is done then. Inputs and expected
outputs of several requests are made beforehand, in the Examiner's own memory. They are copied to shared memory one
request at a time. The candidate's outputs are copied back, and compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.timing.clock import Answer, RequestClock
from kernel_coder.judge.examiner.timing.requests import Request, RequestMaker
from kernel_coder.judge.examiner.timing_constants import TIMING
from kernel_coder.judge.gpu.turns import Turn
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.shared_tensors import tensor_at
from kernel_coder.ops.compare import read_comparisons


class Requester:
    """Sends requests to a candidate's Runner and to the reference's, and checks the answers."""

    def __init__(self, checker: Checker, reference: Link) -> None:
        self.checker, self.reference, self.turns = checker, reference, checker.turns
        self.maker = RequestMaker(checker, reference)
        self.clock = RequestClock(checker)
        self._staged_bytes = TIMING[checker.task.device.type].staged_bytes

    def answers(
        self,
        links: list[Link],
        calls: int,
        *,
        timed: bool,
        first: Callable[[], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> list[Answer]:
        """Answers to one request to each of `links`, in this order.

        Args:
            links: to Runners.
            calls: of each request.
            timed: whether the device is taken alone for them.
            first: called before the requests, while the device is taken.
            then: called after them, while the device is taken.

        Raises:
            Judged: an output of the candidate's is wrong.
        """
        is_kept = self.maker.bytes_of(calls) <= self._staged_bytes
        with self.turns.shared() as turn:
            self.clock.draw_places(calls)
            requests = self._requests(links, calls, turn) if is_kept else None
            if not timed:
                answers = self._answered(links, calls, requests)
                turn.pause()
                self.check(answers)
                return answers
        with self.turns.alone():
            if first is not None:
                first()
            answers = self._answered(links, calls, requests)
            if then is not None:
                then()
        with self.turns.shared():
            self.check(answers)
        return answers

    def _requests(self, links: list[Link], calls: int, turn: Turn) -> list[Request]:
        """Requests that are made beforehand. The reference is given inputs that the candidate has been given before, so
        that they need not be made twice; never the other way round."""
        requests: list[Request] = []
        known: Request | None = None  # one that the candidate will have answered by then
        for link in links:
            turn.pause()
            if link is self.reference and known is not None:
                requests.append(known.again(link))
                continue
            requests.append(self.maker.make(link, calls, True))
            if link is not self.reference and all(one.family == "own" for one in requests[-1].expected):
                known = requests[-1]
        return requests

    def _answered(self, links: list[Link], calls: int, requests: list[Request] | None) -> list[Answer]:
        """Send the requests. Those that are not made beforehand are made one at a time, in shared memory; the answer to
        each is checked before the next one takes its place."""
        answers: list[Answer] = []
        for place, link in enumerate(links):
            request = self.maker.make(link, calls, False) if requests is None else requests[place]
            answers.append(self.clock.measure(request))
            if requests is None:
                self.check(answers[-1:])
                answers[-1] = answers[-1].forgotten()
            del request  # frees its memory before the next one is made
        return answers

    def check(self, answers: list[Answer]) -> None:
        """Compare all outputs of the candidate, as they were when the clock stopped. Raises Judged if one is wrong."""
        own = [(one, one.request) for one in answers if one.request is not None and one.link is not self.reference]
        calls = [
            (self._outputs(answer.found, slot), expected)
            for answer, request in own
            for slot, expected in enumerate(request.expected)
        ]
        results = read_comparisons(
            [
                ops.compare(found, wanted, rtol=allowed.rtol, atol=allowed.atol)
                for outputs, expected in calls
                for found, wanted, allowed in zip(outputs, expected.outputs, expected.tolerances, strict=True)
            ]
        )
        for place, (outputs, expected) in enumerate(calls):
            mine = results[place * len(outputs) : (place + 1) * len(outputs)]
            self.checker.refuse_values(
                self.maker.variant, expected.family, expected.tolerances, mine, when="In a timed call: "
            )
        if not own:
            return
        seen_again = torch.stack([answer.found[self.clock.places] for answer, _ in own]).cpu()
        if not torch.equal(seen_again, torch.stack([answer.seen for answer, _ in own])):
            raise Judged(Outcome.REJECTED, "it wrote to an output after it had answered")
        if self.checker.task.reference.changes_inputs:
            return
        after, before = ([one.hashes for pair in own if (one := pair[i]).hashes is not None] for i in (0, 1))
        if not torch.equal(torch.stack(after), torch.stack(before)):
            raise Judged(Outcome.WRONG_OUTPUT, "it wrote to an input in a timed call")

    def _outputs(self, memory: Tensor, slot: int) -> list[Tensor]:
        variant = self.maker.variant
        base = slot * variant.output_stride
        return [tensor_at(memory, spec, base) for spec in variant.output_specs]
