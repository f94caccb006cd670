"""The judge's acceptance matrix: for each attack, the hacks of the corpus that try it and the tests that cover it.

docs/judge_acceptance.md shows the same rows as a table. The tests in this file cover what no other test covers.
"""

# ruff: noqa: E501 (the table)

from __future__ import annotations

import os
import random
import secrets
import socket
import struct
import time
from pathlib import Path

import corpus
import pytest
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.messages import Say, Status
from kernel_coder.tasks import Task

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs" / "judge_acceptance.md"

# Row: topic, hacks of the corpus, tests (file::function), where they passed: C (on the CPU), G (on a GPU), or why not.
ROWS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "A01": ("null candidates on every task", "H10 H12", ("test_acceptance.py::test_null_candidates_fail_on_every_task",), "C G"),
    "A02": ("tasks with constant outputs", "", ("test_judge.py::test_task_that_cannot_be_used_to_judge_candidates_is_refused",), "C"),
    "A03": ("uninitialised outputs", "H08 H17", (), "C G"),
    "A04": ("caches of outputs", "H09 H35 H36", ("test_judge.py::test_candidate_that_returns_cached_outputs_is_detected",), "C G"),
    "A05": ("inputs changed, outputs aliased or mistyped", "H22 H25", ("test_judge.py::test_wrong_candidate_gets_its_outcome_and_a_reason",), "C G"),
    "A06": ("fallbacks, the reference imported", "H01 H02 H03", (), "C G"),
    "A07": ("decoy kernels", "H04 H05", ("test_attribution.py::test_an_audit_tells_moving_data_from_computing",), "C G"),
    "A08": ("the profiler spoiled", "H60", ("test_attribution.py::test_without_trustworthy_records_there_is_no_share",), "C G"),
    "A09": ("weakened algorithms, lower precision", "H13 H14", ("test_judge.py::test_right_candidate_passes_and_coarse_one_fails_in_each_precision",), "C G"),
    "A10": ("right on public shapes only, half of the work", "H07 H15 H16 H18 H19", (), "C G"),
    "A11": ("seeds guessed or tampered with", "H20 H21", (), "C G"),
    "A12": ("searches for the answer", "H23 H24 H26", (), "C G"),
    "A13": ("lazy tensors, patched comparisons", "H27 H28", (), "C G"),
    "A14": ("patched clocks", "H29 H30", (), "C G"),
    "A15": ("threads, children, side streams, late writes", "H31 H32 H33", (), "C G"),
    "A16": ("calls batched", "H34", (), "C G"),
    "A17": ("phases told apart, slow warm-up", "H37 H38", (), "C G"),
    "A18": ("data kept in L2", "H39", (), "G"),
    "A19": ("a slowed baseline", "H40", ("test_foreign_load.py", "test_timing.py"), "C G: the reference is timed without the candidate, too (of the six forms for a GPU none gains, beside the others or in the thousand); burners die with their Runner, and the baseline is what it was; load from elsewhere, or another's first call, pulls speedups towards 1"),
    "A20": ("absurd times", "H41", ("test_verdict.py",), "C G"),
    "A21": ("many near-identical copies", "", ("test_interval.py::test_the_best_of_two_hundred_copies_gains_nothing_beyond_the_noise",), "C: equal ones are judged once a step; others are, and paid by the lower bound"),
    "A22": ("forged verdicts, the channel", "H45 H46 H47 H48", (), "C G"),
    "A23": ("pickles, malformed frames", "H49", ("test_acceptance.py::test_examiner_refuses_malformed_frames_and_takes_only_valid_answers",), "C G"),
    "A24": ("exits and crashes", "H50", ("test_acceptance.py::test_candidate_that_exits_or_aborts_at_import_gets_its_verdict_at_once",), "C G"),
    "A25": ("the judge and siblings killed", "H51", ("test_sandbox.py",), "C G"),
    "A26": ("files written and read", "H26 H52", ("test_sandbox.py",), "C G"),
    "A27": ("poisoned caches", "H53", (), "C G"),
    "A28": ("environment tricks", "H54", ("test_sandbox.py",), "C G"),
    "A29": ("attacks at compile time", "H55", (), "C"),
    "A30": ("a build lock left behind", "H56", (), "C"),
    "A31": ("network", "H57", ("test_sandbox.py",), "C G"),
    "A32": ("endless loops, daemons", "H63 H71", ("test_judge.py::test_candidate_that_hangs_times_out_and_next_one_is_judged",), "C G"),
    "A33": ("endless GPU kernels", "H64", ("test_device_memory.py",), "G"),
    "A34": ("fork and thread bombs", "H65", ("test_sandbox.py",), "C G"),
    "A35": ("memory bombs", "H66 H67", ("test_sandbox.py",), "C G"),
    "A36": ("disk, output and descriptor floods", "H68", ("test_sandbox.py",), "C G"),
    "A37": ("broken CUDA contexts", "H69", (), "G"),
    "A38": ("a thousand hostile, then a hundred honest", "", ("test_corpus.py::test_after_a_thousand_hostile_candidates_honest_ones_are_judged_as_before",), "C G"),
    "A39": ("honest candidates", "", ("test_corpus.py::test_honest_candidates_are_correct",), "C G"),
    "A40": ("one kernel thirty times", "", ("test_foreign_load.py::test_one_kernel_many_times_keeps_its_verdict",), "G (alone and beside 11 that compile, 084198f: no verdict changed; speedup 1.37 to 1.65, 0.98 to 1.66; the test of the reference against itself passed there, too)"),
    "B01": ("each layer missing", "", ("test_sandbox.py",), "C"),
    "B02": ("started as root", "", ("test_sandbox.py",), "C G"),
    "B03": ("CUDA in the whole sandbox", "", ("test_device_memory.py",), "G"),
    "B04": ("the Examiner killed", "", ("test_judge.py::test_candidate_gets_its_verdict_after_the_examiner_was_killed",), "C"),
    "B05": ("a GPU that fails its probe", "", ("test_judge.py::test_device_that_fails_its_probes_is_out_of_service_and_every_pair_gets_a_verdict",), "C, a fake failure"),
    "B06": ("order of verdicts", "", ("test_judge.py::test_verdicts_come_in_order_and_pairs_are_taken_only_when_needed",), "C"),
    "B07": ("failures made to look like the judge's", "H62", ("test_corpus.py::test_no_candidate_is_reported_as_a_failure_of_the_judge",), "C G"),
}  # fmt: skip


def test_every_row_names_existing_hacks_and_tests() -> None:
    names = [f"A{number:02}" for number in range(1, 41)] + [f"B{number:02}" for number in range(1, 8)]
    assert list(ROWS) == names
    for _, hacks, tests, where in ROWS.values():
        assert set(hacks.split()) <= corpus.HACKS.keys()
        for test in tests:
            file, _, function = test.partition("::")
            assert f"def {function}" in (HERE / file).read_text(), test
        assert hacks or tests or where.startswith("not ")


def test_docs_show_every_row() -> None:
    text = DOCS.read_text()
    for name, (what, hacks, _, where) in ROWS.items():
        forms = sum(one.hack in hacks.split() for one in corpus.hostile())
        assert f"| {name} | {what} | {hacks or '-'} | {forms or '-'} | {where} |" in text, name


NULLS = {
    "zeros": "torch.zeros_like(one)",
    "ones": "torch.ones_like(one)",
    "noise": "torch.rand_like(one) if one.is_floating_point() else torch.ones_like(one)",
}
MORE_NULLS = ("ones", "noise", "an input")


@pytest.mark.parametrize("name", ["zeros", *(pytest.param(name, marks=pytest.mark.long) for name in MORE_NULLS)])
def test_null_candidates_fail_on_every_task(name: str) -> None:
    """A null candidate returns the structure, the shapes and the dtypes of the reference's outputs, with useless values."""
    config = JudgeConfig(timing=False, ablation=False, checks=2, timeout_s=20)
    with Judge("cpu", "torch", config=config) as judge:

        def pairs() -> list[tuple[Task, str]]:
            return [
                (Task(id=task.name, source="c", reference=task.source, precision=task.precision), null(task.source))
                for task in corpus.tasks().values()
            ]

        def null(source: str) -> str:
            made = NULLS.get(name, "inputs[0].flatten()[: one.numel()].reshape(one.shape).to(one.dtype)")
            return (
                source.replace("class Model(", "class Reference(")
                + "\nfrom torch.utils import _pytree\nclass ModelNew(Reference):\n    def forward(self, *inputs):\n"
                "        outputs = super().forward(*(one.clone() for one in inputs))\n"
                f"        return _pytree.tree_map(lambda one: {made}, outputs)\n"
            ).replace("super(Model", "super(Reference")

        for (task, _), verdict in zip(pairs(), judge.evaluate_many(pairs()), strict=True):
            assert not verdict.correct, task.id
            assert verdict.outcome is not Outcome.HARNESS_FAILED, (task.id, verdict.reason)


def test_candidate_that_exits_or_aborts_at_import_gets_its_verdict_at_once() -> None:
    config = JudgeConfig(timing=False, workers=1, timeout_s=60)
    task = corpus.tasks()["softmax"].source
    with Judge("cpu", "torch", config=config) as judge:
        judge.evaluate(task, task.replace("class Model(", "class ModelNew("))
        for end in ("os._exit(0)", "os.abort()", "os.kill(os.getpid(), 9)", "sys.exit(0)"):
            started = time.monotonic()
            verdict = judge.evaluate(task, f"import os, sys\nclass ModelNew: pass\n{end}\n")
            assert not verdict.correct
            assert verdict.outcome in (Outcome.CRASHED, Outcome.COMPILE_ERROR), verdict.reason
            assert time.monotonic() - started < 10


def test_examiner_refuses_malformed_frames_and_takes_only_valid_answers() -> None:
    """100,000 random frames: the Examiner rejects the candidate, or the frame has the kind and a status of an answer."""
    ours, theirs = Channel.pair()
    link = Link(ours, -1, None, bytearray(8), 300.0)  # type: ignore[arg-type]
    sender, rng = socket.socket(fileno=os.dup(theirs.fd)), random.Random(7)
    noise = secrets.token_bytes(4096)
    refused = taken = 0
    for _ in range(100_000):
        size = rng.choice((64, 64, 64, 1, 63, 65, 4000))
        start = rng.randrange(len(noise) - 64)
        data = (noise[start : start + 64] * 63)[:size]
        if rng.random() < 0.3 and size == 64:
            data = struct.pack("<Ii", rng.choice((1, 2, 3, 99)), rng.choice((0, 1, -1, max(Status) + 1))) + data[8:]
        sender.send(data)
        try:
            frame = link.answer(Say.CALL)
        except Judged as judged:
            refused += judged.outcome is Outcome.REJECTED
        else:
            taken += frame.kind == Say.CALL and 0 <= frame.status <= max(Status)
    assert refused + taken == 100_000
    assert 0 < taken < 10_000
    sender.close()
    ours.close()
    theirs.close()
