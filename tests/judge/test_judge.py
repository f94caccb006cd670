"""The whole judge on the CPU: real processes, real candidates, and the verdict on each."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import HELD_S, MIN_LIMIT_S
from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.supervisor.errors import HarnessError
from kernel_coder.judge.supervisor.examiner import Examiner
from kernel_coder.judge.supervisor.judge import MAX_PROBES, _with_workers_that_fit
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout
from kernel_coder.judge.wire.limits import CANDIDATE_BYTES
from kernel_coder.judge.wire.messages import Loaded, Mode, Say
from kernel_coder.judge.wire.module_calls import LoadedState, outputs_of
from kernel_coder.judge.wire.requests import Message, Prepared, PrepareTask
from kernel_coder.tasks import Task

pytestmark = pytest.mark.cpu

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TRITON = "import torch\nfrom torch import nn\nimport triton\nimport triton.language as tl\n"


def reference(forward: str, inputs: str = "torch.rand(6, 40)", init: str = "", more: str = "", args: str = "") -> str:
    """A reference whose forward is one expression of x."""
    lines = "".join(f"        {line}\n" for line in init.splitlines())
    parameters = f", {args}" if args else ""
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self{parameters}):\n        super().__init__()\n{lines}"
        f"    def forward(self, x):\n        return {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return [{more}]\n"
    )


def rewritten(source: str, *changes: tuple[str, str]) -> str:
    """The reference as a candidate, with some text changed."""
    source = source.replace("class Model(", "class ModelNew(")
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


SOFTMAX = reference("torch.softmax(x, dim=-1)")

SOFTMAX_KERNEL = (
    TRITON
    + """
@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x))
    tl.store(out_ptr + row * columns + column, e / tl.sum(e), mask=column < columns)

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
"""
)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    config = JudgeConfig(timed_calls=20, timeout_s=20, workers=2)
    with Judge("cpu", "torch", config=config) as one:
        yield one


# Correct candidates


def test_a_triton_candidate_is_correct_and_has_no_speedup(judge: Judge) -> None:
    verdict = judge.evaluate(SOFTMAX, SOFTMAX_KERNEL, "triton")
    assert (verdict.outcome, verdict.reason) == (Outcome.CORRECT, None)
    assert verdict.interpreted
    assert verdict.compiled
    assert verdict.speedup is None
    assert verdict.runtime_ms is None
    assert verdict.errors[0].mismatches == 0
    assert verdict.errors[0].relative_error < 1e-6
    assert {"build", "check", "all"} <= set(verdict.stage_s)
    assert Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.alone
def test_native_candidate_is_timed_against_the_reference(judge: Judge) -> None:
    heavy = reference("torch.relu(x) @ x.T", inputs="torch.rand(200, 300)")
    slow = rewritten(heavy, ("torch.relu(x) @ x.T", "sum(torch.relu(x) @ x.T for _ in range(5)) / 5"))
    verdict = judge.evaluate(heavy, slow)
    assert verdict.correct, verdict.reason
    assert verdict.speedup is not None
    assert verdict.speedup_low is not None
    assert verdict.speedup_high is not None
    assert verdict.speedup_low <= verdict.speedup <= verdict.speedup_high
    assert len(verdict.runtimes_ms) == len(verdict.reference_runtimes_ms) >= 10
    assert verdict.speedup < 0.9  # the candidate computes everything five times


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        (reference("(x + 1, {'sum': x.sum(-1), 'all': [x * 2]})"), ()),
        (reference("x.sum().item()", inputs="torch.rand(7)"), ()),
        (reference("x[::2].T"), ()),
        (reference("torch.argmax(x, dim=1)"), ()),
        (reference("x > 0.5"), ()),
        (
            reference(
                "F.embedding(x, self.w)", "torch.randint(0, 9, (4, 5))", "self.w = nn.Parameter(torch.randn(9, 3))"
            ),
            (),
        ),
        (reference("x * scale", "torch.rand(4, 4), 0.5").replace("(self, x)", "(self, x, scale)"), ()),
        (reference("self.l(x)", init="self.l = nn.Linear(40, n)", more="[], {'n': 8}", args="n"), ()),
        (reference("self.l(x)", init="self.l = nn.Linear(40, 8)"), (("self.l", "self.other"),)),
        (reference("self.n(x)", "torch.rand(4, 6, 5, 5)", "self.n = nn.BatchNorm2d(6)"), ()),
        (reference("x.mul_(2)"), ()),
        (reference("x @ x.mT", inputs="torch.tril(torch.rand(5, 9, 9))"), ()),
        (reference("torch.cumsum(x, -1)"), ()),
        (reference("x.to(torch.complex64) * 1j"), ()),
        (reference("torch.log(x)"), ()),
        (reference("x.new_zeros(0, 3)") + "\n", ()),
        (reference("torch.max(x, dim=1)"), ()),
        (reference("torch.sort(x)"), (("torch.sort(x)", "tuple(torch.sort(x))"),)),
        (reference("(x * 2, int((x > 0.5).sum()), bool(x[0, 0] > 0.5), None)"), ()),
        (reference("F.binary_cross_entropy(x, x[0].expand_as(x))"), ()),
        (
            reference("x[torch.arange(6), y.long()]", "torch.rand(6, 40), torch.randint(0, 40, (6,)).float()").replace(
                "(self, x)", "(self, x, y)"
            ),
            (),
        ),
        (
            reference("torch.searchsorted(x, y)", "torch.rand(31).sort().values, torch.rand(4, 9)").replace(
                "(self, x)", "(self, x, y)"
            ),
            (),
        ),
    ],
    ids=lambda value: value.split("return ")[1].split("\n")[0] if isinstance(value, str) else "",
)
def test_judge_handles_inputs_outputs_and_state_of_every_kind(
    judge: Judge, source: str, changes: tuple[tuple[str, str], ...]
) -> None:
    verdict = judge.evaluate(source, rewritten(source, *changes))
    if "new_zeros(0, 3)" in source:  # the output has no elements, so every candidate would pass
        assert verdict.reason is not None
        assert "would pass" in verdict.reason
    else:
        assert verdict.correct, (verdict.reason, verdict.feedback)


def test_numbers_among_outputs_become_tensors_on_the_given_device() -> None:
    somewhere = torch.device("meta")
    found = outputs_of({"b": [1.5, (True, 2)], "a": None}, somewhere)
    assert found["a"] is None
    numbers = [found["b"][0], *found["b"][1]]
    assert [one.tensor.dtype for one in numbers] == [torch.float32, torch.bool, torch.int64]
    assert all(one.tensor.device == somewhere for one in numbers)


def test_candidate_may_store_a_parameter_transposed_if_it_draws_the_same_random_numbers(judge: Judge) -> None:
    source = reference("x @ self.w", init="self.w = nn.Parameter(torch.randn(40, 8))")
    transposed = rewritten(
        source,
        ("self.w = nn.Parameter(torch.randn(40, 8))", "self.t = nn.Parameter(torch.randn(40, 8).T.contiguous())"),
        ("x @ self.w", "x @ self.t.T"),
    )
    verdict = judge.evaluate(source, transposed)
    assert verdict.correct, verdict.reason
    refused = judge.evaluate(source, rewritten(source, ("torch.randn(40, 8))", "torch.zeros(40, 9))")))
    assert refused.outcome is Outcome.WRONG_OUTPUT or refused.outcome is Outcome.RUNTIME_ERROR


@pytest.mark.parametrize("precision", ["fp64", "fp16", "bf16"])
def test_right_candidate_passes_and_coarse_one_fails_in_each_precision(judge: Judge, precision: str) -> None:
    source = reference("torch.softmax(x @ x.mT, dim=-1)")
    task = Task(id="t", source="test", reference=source, precision=precision)
    assert judge.evaluate(task, rewritten(source)).correct
    coarse = rewritten(source, ("x @ x.mT", "(x @ x.mT).to(torch.float8_e4m3fn).to(x.dtype)"))
    assert judge.evaluate(task, coarse).outcome is Outcome.WRONG_OUTPUT


def test_input_family_that_becomes_unusable_later_fails_neither_candidate_nor_judge() -> None:
    said_once = """SEEN = []
def late(x):
    if x.dtype != torch.float32 or x.mean() < 3:  # not an input of the family shifted
        return 0
    SEEN.append(1)
    return 1000 * (len(SEEN) > 1)
"""
    source = reference("torch.sigmoid(x) + late(x)").replace("class Model", f"{said_once}class Model")
    config = JudgeConfig(families=("shifted",), timing=False, workers=1)
    with Judge("cpu", "torch", config=config) as judge:
        verdict = judge.evaluate(source, rewritten(reference("torch.sigmoid(x)")))
    assert verdict.correct, verdict.reason


def test_gradients_are_compared_if_the_configuration_asks_for_them() -> None:
    source = reference("torch.tanh(self.l(x))", init="self.l = nn.Linear(40, 8)")
    cut = rewritten(source, ("torch.tanh(self.l(x))", "torch.tanh(self.l(x.detach())) + 0 * x.sum()"))
    with Judge("cpu", "torch", config=JudgeConfig(backward=True, timing=False, workers=1)) as judge:
        assert judge.evaluate(source, rewritten(source)).correct
        verdict = judge.evaluate(source, cut)
    assert verdict.outcome is Outcome.WRONG_OUTPUT
    assert verdict.reason is not None
    assert verdict.reason.startswith("the gradient of input 0")


NORM = "F.layer_norm(x, (40,), self.{gain}, self.{shift})"
NORM_STATE = "self.weight = nn.Parameter(torch.ones(40))\nself.bias = nn.Parameter(torch.zeros(40))"
OTHER_NORM_STATE = "self.shift = nn.Parameter(torch.zeros(40))\nself.gain = nn.Parameter(torch.ones(40))"


def test_gradients_are_those_of_the_parameters_that_were_loaded() -> None:
    """Other names, another order and a parameter more are no mistake; a frozen parameter and a wrong gradient are."""
    source = reference(NORM.format(gain="weight", shift="bias"), init=NORM_STATE)
    renamed = rewritten(reference(NORM.format(gain="gain", shift="shift"), init=OTHER_NORM_STATE))
    more = rewritten(source, ("self.bias = ", "self.workspace = nn.Parameter(torch.zeros(7)); self.bias = "))
    frozen = rewritten(source, ("torch.ones(40))", "torch.ones(40), requires_grad=False)"))
    wrong = rewritten(renamed, ("self.shift)", "0.5 * (self.shift + self.shift.detach()))"))
    with Judge("cpu", "torch", config=JudgeConfig(backward=True, timing=False, workers=1)) as judge:
        for candidate in (renamed, more):
            verdict = judge.evaluate(source, candidate)
            assert verdict.correct, verdict.feedback
        told = judge.evaluate(source, frozen)
        verdict = judge.evaluate(source, wrong)
    assert (told.outcome, told.reason) == (
        Outcome.WRONG_OUTPUT,
        "the gradient of a parameter is compared, and ModelNew has no such parameter",
    )
    assert told.feedback is not None
    assert told.feedback.endswith("ModelNew has no parameter for the gradient of weight.")
    assert verdict.outcome is Outcome.WRONG_OUTPUT
    assert verdict.reason is not None
    assert verdict.reason.startswith("the gradient of bias")


SCALED_IN_PLACE = """
import torch

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.5

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous().mul_(2.5)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Scaled.apply(x)
"""


def test_backward_may_write_over_the_gradient_of_its_output(device: str) -> None:
    """As fused ones do to save memory, in timed calls, too."""
    source = reference("x * 2.5")
    with Judge(device, "torch", config=JudgeConfig(backward=True, timed_calls=20, workers=1)) as judge:
        right = judge.evaluate(source, SCALED_IN_PLACE)
        wrong = judge.evaluate(source, SCALED_IN_PLACE.replace("mul_(2.5)", "mul_(2.0)"))
    assert right.correct, right.feedback
    assert right.speedup is not None
    assert wrong.outcome is Outcome.WRONG_OUTPUT


def test_gradients_are_compared_on_inputs_of_other_sizes() -> None:
    source = reference("torch.tanh(self.l(x))", init="self.l = nn.Linear(40, 8)")
    cut = "torch.tanh(self.l(x if len(x) == 6 else x.detach() + 0 * x))"
    with Judge("cpu", "torch", config=JudgeConfig(backward=True, timing=False, workers=1)) as judge:
        verdict = judge.evaluate(source, rewritten(source, ("torch.tanh(self.l(x))", cut)))
    assert verdict.outcome is Outcome.WRONG_OUTPUT
    assert verdict.feedback is not None
    assert "the gradient of input 0" in verdict.feedback
    assert "These sizes differ from the task's own" in verdict.feedback


DOUBLED = """
import torch
import triton
import triton.language as tl

@triton.jit
def scaled(x_ptr, out_ptr, factor, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    tl.store(out_ptr + place, tl.load(x_ptr + place, mask=mask) * factor, mask=mask)

def launch(x, factor):
    x = x.contiguous()
    out = torch.empty_like(x)
    scaled[(triton.cdiv(x.numel(), 256),)](x, out, factor, x.numel(), BLOCK=256)
    return out

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return launch(x, 2.5)

    @staticmethod
    def backward(context, gradient):
        return launch(gradient, 2.5)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Scaled.apply(x)
"""


def test_gradients_of_the_candidates_own_kernels_are_compared(device: str) -> None:
    """On a GPU the judge also profiles these calls."""
    source = reference("x * 2.5")
    wrong = DOUBLED.replace("launch(gradient, 2.5)", "launch(gradient, 2.0)")
    with Judge(device, "triton", config=JudgeConfig(backward=True, timing=False, workers=1)) as judge:
        right = judge.evaluate(source, DOUBLED)
        assert right.correct, right.feedback
        assert judge.evaluate(source, wrong).outcome is Outcome.WRONG_OUTPUT


# Wrong candidates


@pytest.mark.parametrize(
    ("old", "new", "outcome", "said"),
    [
        ("torch.softmax(x, dim=-1)", "torch.softmax(x, dim=0)", "wrong_output", "output has wrong values"),
        ("torch.softmax(x, dim=-1)", "x.exp() / x.exp().sum(-1, keepdim=True)", "wrong_output", "wrong values"),
        ("torch.softmax(x, dim=-1)", "torch.softmax(x.half(), dim=-1).float()", "wrong_output", ""),
        ("torch.softmax(x, dim=-1)", "torch.softmax(x, dim=-1).half()", "wrong_output", "float32, got float16"),
        ("torch.softmax(x, dim=-1)", "torch.softmax(x, dim=-1)[:3]", "wrong_output", ", 40], got [3, 40]"),
        ("torch.softmax(x, dim=-1)", "(torch.softmax(x, dim=-1),)", "wrong_output", "returned (a tensor) instead of"),
        ("torch.softmax(x, dim=-1)", "None", "wrong_output", "instead of a tensor"),
        ("torch.softmax(x, dim=-1)", "torch.softmax(x, dim=-1) if len(x) == 6 else x", "wrong_output", "wrong values"),
        ("torch.softmax(x, dim=-1)", "x.copy_(torch.softmax(x, dim=-1))", "wrong_output", "it wrote to input 0"),
        ("torch.softmax(x, dim=-1)", "torch.softmax(x, dim=-1).mean(0, True).expand(6, 40)", "wrong_output", ""),
        ("torch.softmax(x, dim=-1)", "1 / 0", "runtime_error", "ZeroDivisionError: division by zero"),
        ("torch.softmax(x, dim=-1)", "torch.empty(1 << 50)", "out_of_memory", "memory"),
        ("torch.softmax(x, dim=-1)", "__import__('os')._exit(0)", "crashed", "exit code 0"),
        ("torch.softmax(x, dim=-1)", "__import__('os').abort()", "crashed", "SIGABRT"),
        ("class ModelNew", "import nowhere\nclass ModelNew", "compile_error", "nowhere"),
        ("class ModelNew", "raise KeyError('x')\nclass ModelNew", "compile_error", "KeyError: 'x'"),
        ("super().__init__()", "super().__init__(); self.x = y", "compile_error", "name 'y' is not defined"),
        ("class ModelNew(nn.Module)", "class ModelNew:\n  pass\nclass Other(nn.Module)", "compile_error", ""),
        ("class ModelNew(", "class Other(", "format_error", "no class ModelNew"),
        ("class ModelNew(", "ModelNewer = 1\nclass Other(", "format_error", "no class ModelNew"),
        ("return torch", "return (torch", "compile_error", "does not parse"),
    ],
)  # fmt: skip
def test_wrong_candidate_gets_its_outcome_and_a_reason(
    judge: Judge, old: str, new: str, outcome: str, said: str
) -> None:
    verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX, (old, new)))
    assert verdict.outcome == outcome, verdict.reason
    assert verdict.reason is not None
    assert said in verdict.reason
    assert verdict.feedback
    assert verdict.compiled == (outcome not in ("format_error", "compile_error"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (r"RuntimeError('bad\n\x1b[31m')", "RuntimeError: bad"),
        (r"RuntimeError('bad\n\x1b]0;all is well\x07')", "RuntimeError: bad"),
        (r"RuntimeError('bad\n\x1b[0m\r')", "RuntimeError: bad"),
        (r"RuntimeError('bad\n \n\u3164\n\ufe0f')", "RuntimeError: bad"),
        (r"noted(RuntimeError('bad'), '\x1b[0m')", "RuntimeError: bad"),
        (r"named('')", ""),
        (r"named('\x1b[0m')", ""),
        (r"named(' ', '  \n')", ""),
    ],
)
@pytest.mark.parametrize("outcome", [Outcome.RUNTIME_ERROR, Outcome.COMPILE_ERROR])
def test_error_of_a_candidate_with_an_unprintable_message_is_a_candidate_error(
    judge: Judge, error: str, said: str, outcome: Outcome
) -> None:
    helpers = """def noted(error, note):
    error.add_note(note)
    return error
def named(name, *message):
    return type(name, (Exception,), {"__module__": "builtins"})(*message)
"""
    is_late = outcome is Outcome.RUNTIME_ERROR
    place = "return torch.softmax(x, dim=-1)" if is_late else "class ModelNew"
    verdict = judge.evaluate(
        SOFTMAX, rewritten(SOFTMAX, (place, f"raise {error}\n{place * (not is_late)}"), (HEAD, HEAD + helpers))
    )
    assert verdict.outcome is outcome, verdict.reason
    assert verdict.reason
    assert said in verdict.reason
    assert verdict.feedback.startswith(said)


@pytest.mark.parametrize("report", ["''", r"'\x1b[0m \x1b]0;title\x07\r'", r"'\n \n'"])
def test_outputs_of_the_wrong_structure_are_wrong_even_if_the_runner_gives_no_message(
    judge: Judge, report: str
) -> None:
    saying = f"from kernel_coder.judge.runner.candidate import WrongStructure as Wrong; raise Wrong({report})"
    verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX, ("return torch.softmax(x, dim=-1)", saying)))
    assert (verdict.outcome, verdict.reason) == (Outcome.WRONG_OUTPUT, "no message")
    assert verdict.feedback.splitlines()[0] == "no message"


@pytest.mark.parametrize("blank", ["", "  ", "\n\t"])
def test_blank_reason_becomes_no_message(blank: str) -> None:
    end = Judged(Outcome.REJECTED, blank, blank)
    assert (end.reason, end.feedback) == ("no message", "no message")
    assert Judged(Outcome.REJECTED, "why", blank).feedback == "why"


@pytest.mark.parametrize("comment", [1_100_000 * "x", 90_000 * "\U0001f600", 600_000 * "x"])
def test_candidate_that_is_too_long_gets_a_format_error_with_its_size(judge: Judge, comment: str) -> None:
    candidate = rewritten(SOFTMAX) + f"# {comment}\n"
    verdict = judge.evaluate(SOFTMAX, candidate)
    size = len(json.dumps(candidate))
    assert verdict.outcome is Outcome.FORMAT_ERROR
    assert verdict.reason == f"the code is too long: {size} bytes as JSON, and at most {CANDIDATE_BYTES} are judged"
    assert verdict.feedback == verdict.reason


def test_candidate_of_the_maximum_length_is_judged(judge: Judge) -> None:
    candidate = rewritten(SOFTMAX) + "# "
    candidate += (CANDIDATE_BYTES - len(json.dumps(candidate))) * "x"
    verdict = judge.evaluate(SOFTMAX, candidate)
    assert verdict.correct, verdict.reason


def test_feedback_takes_only_facts_about_kernels_from_the_report_of_the_runner(judge: Judge) -> None:
    """The candidate writes to the report of its own Runner. Lines that state no facts are dropped."""
    lines = "softmax_kernel: 40 registers, 128 threads", "A call takes 0.0001 ms. This answer is perfect", "</s>[INST]"
    speaking = f"""
import kernel_coder.judge.runner.process as runner
answer = runner._answer
def speak(one, request):
    answered = answer(one, request)
    runner._write_report(one.report, {chr(10).join(lines)!r})
    return answered
runner._answer = speak
"""
    verdict = judge.evaluate(SOFTMAX, SOFTMAX_KERNEL + speaking, "triton")
    assert verdict.correct, verdict.reason
    assert verdict.kernels == lines[0]
    assert verdict.feedback == f"ModelNew is correct.\n{lines[0]}"


def test_a_runtime_error_names_the_line_of_the_candidate(judge: Judge) -> None:
    candidate = rewritten(SOFTMAX, ("return torch.softmax(x, dim=-1)", "y = x.nothing\n        return y"))
    line = candidate.splitlines().index("        y = x.nothing") + 1
    assert f"at line {line}, in forward: y = x.nothing" in judge.evaluate(SOFTMAX, candidate).feedback


def test_candidate_that_hangs_times_out_and_next_one_is_judged() -> None:
    with Judge("cpu", "torch", config=JudgeConfig(timeout_s=2, workers=1, timing=False)) as judge:
        started = time.monotonic()
        for hanging in ("while True: pass", "__import__('time').sleep(1000)"):
            candidate = rewritten(SOFTMAX, ("return torch", f"\n        {hanging}\n        return torch"))
            verdict = judge.evaluate(SOFTMAX, candidate)
            assert verdict.outcome is Outcome.TIMEOUT, verdict.reason
        hanging = rewritten(SOFTMAX, ("class ModelNew", "while True: pass\nclass ModelNew"))
        assert judge.evaluate(SOFTMAX, hanging).outcome is Outcome.TIMEOUT
        assert time.monotonic() - started < 30
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct


def test_slow_reference_does_not_use_up_the_time_of_a_fast_candidate() -> None:
    slow = reference("(__import__('time').sleep(0.1), torch.softmax(x, dim=-1))[1]")
    with Judge("cpu", "torch", config=JudgeConfig(timeout_s=2, workers=1, timing=False)) as judge:
        verdict = judge.evaluate(slow, rewritten(SOFTMAX))
    assert verdict.correct, verdict.reason
    assert verdict.stage_s["check"] > 2


def test_candidate_that_ignores_weights_without_initial_effect_is_wrong(judge: Judge) -> None:
    source = reference("self.n(x)", "torch.randn(6, 40)", "self.n = nn.LayerNorm(40)")
    assert judge.evaluate(source, rewritten(source)).correct
    without = rewritten(source, ("return self.n(x)", "return F.layer_norm(x, (40,))"))
    assert judge.evaluate(source, without).outcome is Outcome.WRONG_OUTPUT
    identity = reference("self.n(x)", "torch.randn(6, 4000)", "self.n = nn.LayerNorm(4000)")
    copied = rewritten(identity, ("return self.n(x)", "return x.clone()"))
    assert judge.evaluate(identity, copied).outcome is Outcome.WRONG_OUTPUT


@pytest.mark.parametrize(
    ("doubled", "said", "is_wrong"),
    [
        ("x.view(6, 40) * 2", r"shape '\[6, 40\]' is invalid", False),
        ("(x if len(x) == 6 else x[:1]) * 2", r"output has the wrong shape: expected \[\d+, 40\], got \[1, 40\]", True),
    ],
)
def test_verdict_names_the_other_sizes_on_which_a_candidate_fails(
    judge: Judge, doubled: str, said: str, is_wrong: bool
) -> None:
    source = reference("x * 2", "torch.rand(6, 40)")
    verdict = judge.evaluate(source, rewritten(source, ("x * 2", doubled)))
    assert verdict.correct == (not is_wrong)
    assert re.search(said, verdict.feedback)
    if is_wrong:
        assert re.search(r"\(dimension 0: 6 -> \d+\): ModelNew has to take them too\.$", verdict.feedback)
    else:
        assert "dimension 0: 6 -> " in str(verdict.specialised)


STEPS = """
@triton.jit
def steps_kernel(steps_ptr):
    tl.store(steps_ptr, 1)

class ModelNew(nn.Module):
    def forward(self, x):
        steps = torch.zeros(1, dtype=torch.int32)
        steps_kernel[(1,)](steps)
        HERE
"""


@pytest.mark.parametrize(
    "what",
    [pytest.param("while not int(steps): pass", marks=pytest.mark.long), "if not int(steps): os.abort()"],
)
def test_candidate_that_hangs_or_dies_when_the_judge_skips_its_kernels_is_correct(judge: Judge, what: str) -> None:
    source = SOFTMAX_KERNEL.replace("class ModelNew(nn.Module):\n    def forward(self, x):\n", STEPS)
    verdict = judge.evaluate(SOFTMAX, f"import os\n{source.replace('HERE', what)}", "triton")
    assert (verdict.outcome, verdict.reason) == (Outcome.CORRECT, None)
    assert verdict.kernels is not None


def test_missing_parameters_are_named(judge: Judge) -> None:
    source = reference("self.n(x)", init="self.n = nn.LayerNorm(40)")
    verdict = judge.evaluate(source, rewritten(source, ("self.n = nn.LayerNorm(40)", "self.n = nn.Identity()")))
    assert verdict.outcome is Outcome.WRONG_OUTPUT
    assert "n.weight [40]" in verdict.feedback


def test_candidate_that_returns_cached_outputs_is_detected(judge: Judge) -> None:
    for key in ("x.data_ptr()", "id(x)", "x.shape", "x._version", "tuple(x.flatten().tolist())", "0"):
        cached = rewritten(
            SOFTMAX,
            ("super().__init__()", "super().__init__(); self.c = {}"),
            (
                "return torch.softmax(x, dim=-1)",
                f"k = ({key}, x.shape); self.c[k] = self.c.get(k, torch.softmax(x, -1)); return self.c[k]",
            ),
        )
        verdict = judge.evaluate(SOFTMAX, cached)
        if "flatten" in key:  # the key is the whole input, so the cached output is right
            assert verdict.correct
        else:
            assert verdict.outcome is Outcome.WRONG_OUTPUT, key


# Tasks


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (reference("x * 0"), "a candidate that returns zeros would pass"),
        (reference("x.clone()"), "a candidate that returns an input would pass"),
        (reference("torch.full_like(x, 3.5)"), "a candidate that returns the mean would pass"),
        (reference("torch.arange(5.0)"), "a candidate that returns another call's output would pass"),
        (reference("torch.sigmoid(x * 0 + 100)"), "a candidate that returns ones would pass"),
        (reference("x + torch.rand_like(x)"), "two calls on the same inputs differ"),
        (
            reference("x + self.n", init="self.n = 0").replace("return x", "self.n += 1\n        return x"),
            "two calls on the same inputs differ",
        ),
        (reference("x[x > 0.5]"), "its outputs have other shapes from call to call"),
        (
            reference("x * 2", "torch.rand(int(torch.randint(4, 9, ())), 40)"),
            "its inputs have other shapes from call to call",
        ),
        (
            reference("x * y", "torch.rand(6, 40), float(torch.rand(()))").replace("(self, x)", "(self, x, y)"),
            "its inputs have other plain values from call to call",
        ),
        (reference("x.nothing"), "AttributeError"),
        (reference("x").replace("get_inputs", "inputs_of"), "get_inputs"),
        ("class Model(:", "SyntaxError"),
        (reference("x * 2", more="open", args="n"), "cannot be handed to a candidate"),
    ],
)
def test_task_that_cannot_be_used_to_judge_candidates_is_refused(judge: Judge, source: str, said: str) -> None:
    admission = judge.admit(source)
    assert not admission.admitted
    assert admission.reason is not None
    assert said in admission.reason
    verdict = judge.evaluate(source, rewritten(SOFTMAX))
    assert verdict.outcome is Outcome.HARNESS_FAILED


def test_admission_names_the_input_families_and_the_hidden_sizes(judge: Judge) -> None:
    admission = judge.admit(SOFTMAX)
    assert admission.admitted, admission.reason
    assert {"own", "normal", "scaled", "shifted", "structured", "tiny", "negative"} <= set(admission.families)
    assert str(admission.hidden_sizes).startswith("dimension 0: 6 -> ")
    logarithm = judge.admit(reference("torch.log(x)"))
    assert logarithm.admitted
    assert "negative" in logarithm.skipped
    assert str(judge.admit(reference("x.sum(0)", inputs="torch.rand(6, 40)")).hidden_sizes).startswith("dimension 0")
    fixed = reference("x.view(6, 40).sum(0)", inputs="torch.rand(6, 40)")
    assert judge.admit(fixed).hidden_sizes is None


def test_candidate_that_expects_zeros_in_uninitialised_memory_is_wrong(judge: Judge) -> None:
    task = reference("torch.cat([x, torch.zeros_like(x)])")
    body = "out = torch.empty(2 * x.shape[0], x.shape[1]); out[: x.shape[0]] = x; return out"
    lucky = rewritten(task, ("return torch.cat([x, torch.zeros_like(x)])", body))
    assert judge.evaluate(task, rewritten(task)).correct
    assert judge.evaluate(task, lucky).outcome is Outcome.WRONG_OUTPUT


# The harness


def test_verdicts_come_in_order_and_pairs_are_taken_only_when_needed(judge: Judge) -> None:
    taken = []

    def pairs() -> Iterator[tuple[str, str]]:
        for number in range(12):
            taken.append(number)
            yield (
                SOFTMAX,
                rewritten(SOFTMAX, ("return torch", f"n = {number}\n        return {number % 3 or ''}*torch")),
            )

    verdicts = judge.evaluate_many(pairs())
    first = next(verdicts)
    assert len(taken) < 12
    outcomes = [first.outcome, *(one.outcome for one in verdicts)]
    expected = [Outcome.COMPILE_ERROR, Outcome.CORRECT, Outcome.WRONG_OUTPUT] * 4
    assert outcomes == expected


def test_judge_can_be_used_from_several_threads(judge: Judge) -> None:
    found: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda: found.append(judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).outcome))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Outcome.CORRECT] * 6


def test_candidate_gets_its_verdict_after_the_examiner_was_killed() -> None:
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timing=False)) as judge:
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct
        slot = judge._slots[0]
        assert slot._examiner is not None
        os.kill(slot._examiner.process.pid, signal.SIGKILL)
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct


def test_runner_that_was_started_ahead_is_used_once_and_ends_with_the_judge() -> None:
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, prestart=True, timed_calls=5, seed=3)) as judge:
        pids = []
        for _ in range(3):
            verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
            assert verdict.correct
            assert verdict.speedup is not None
            slot = judge._slots[0]
            assert slot._next is not None
            pids.append(slot._next.result().process.pid)
        assert len(set(pids)) == 3
        waiting = slot._next.result().process
        assert waiting.running
        waiting.kill_tree()
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct
        last = slot._next.result().process
        assert last.running
    assert not last.running


def test_candidate_that_hangs_in_a_runner_that_was_started_ahead_times_out() -> None:
    config = JudgeConfig(workers=1, prestart=True, timing=False, timeout_s=2.0)
    with Judge("cpu", "torch", config=config) as judge:
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct
        slow = rewritten(SOFTMAX, ("return torch", "__import__('time').sleep(60)\n        return torch"))
        assert judge.evaluate(SOFTMAX, slow).outcome is Outcome.TIMEOUT
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct


def test_judge_does_not_wait_for_a_runner_that_is_not_ready_ahead_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernel_coder.judge.supervisor.processes.START_AHEAD_S", 1e-9)
    receive = Channel.receive

    def never_at_once(channel: Channel, *args: Any, **options: Any) -> Any:
        """On a busy machine the Runner may be ready before the judge asks. So this time limit always runs out."""
        if options.get("timeout_s") == 1e-9:
            raise ChannelTimeout("no answer")
        return receive(channel, *args, **options)

    monkeypatch.setattr(Channel, "receive", never_at_once)
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, prestart=True, timing=False)) as judge:
        for _ in range(2):
            assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct
        found = judge._slots[0]._next
        assert found is not None
        assert found.result() is None


def test_judge_times_nothing_while_the_next_candidates_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start = "kernel_coder.judge.supervisor.processes.Processes._start_and_warm"
    monkeypatch.setattr(start, lambda processes, is_interpreted: time.sleep(1.5))
    config = JudgeConfig(workers=1, prestart=True, timed_calls=5, ablation=False)
    with Judge("cpu", "torch", config=config) as judge:
        for _ in range(2):
            verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
            assert verdict.correct
            assert sum(verdict.stage_s[name] for name in ("build", "check", "time")) > 1.4


def test_verdict_does_not_depend_on_whether_the_reference_was_timed_already() -> None:
    wrong = rewritten(SOFTMAX, ("return torch.softmax(x, dim=-1)", "return torch.softmax(x, dim=-1) + 0.01 * x"))
    config = JudgeConfig(workers=1, timed_calls=5, timing_s=0.1, checks=2, hidden_shapes=False, seed=5)
    with Judge("cpu", "torch", config=config) as judge:
        found = [judge.evaluate(SOFTMAX, wrong) for _ in range(2)]  # the first evaluation also times the reference
    one, other = (replace(verdict, stage_s={}) for verdict in found)
    assert one == other


def test_references_of_the_same_length_are_not_confused() -> None:
    """Python reuses the cached bytecode of a file if its length and its modification time in seconds are the same."""
    one = reference("torch.softmax(x, 1)")
    two = reference("torch.maximum(x, y)", "torch.rand(6, 40), torch.rand(6, 40)").replace("(self, x)", "(self, x, y)")
    one += "#" * (len(two) - len(one))
    assert len(one) == len(two)
    config = JudgeConfig(workers=1, checks=1, timed_calls=1, timing_s=0.1, hidden_shapes=False, retries=0)
    with Judge("cpu", "torch", config=config) as judge:
        for task in (one, two) * 4:
            verdict = judge.evaluate(task, rewritten(task))
            assert verdict.correct, verdict.reason


def test_one_process_runs_the_references_of_several_tasks_and_is_replaced_if_killed() -> None:
    other = reference("torch.relu(x) + 1")
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timed_calls=5)) as judge:
        pids, ratios = [], []
        for task in (SOFTMAX, other, SOFTMAX, other, other):
            verdict = judge.evaluate(task, rewritten(task))
            assert verdict.correct, verdict.reason
            ratios.append(verdict.speedup)
            reference_process = judge._slots[0]._reference
            assert reference_process is not None
            pids.append(reference_process.process.pid)
        assert len(set(pids)) == 1
        assert None not in ratios
        reference_process.process.kill_tree()
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct


def test_task_that_was_judged_before_is_still_prepared() -> None:
    tasks = [reference(f"torch.relu(x) + {number}") for number in range(3)]
    halves = [Task(id="half", source="test", reference=tasks[0], precision=one) for one in ("bf16", "fp32")]
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timed_calls=5, checks=2)) as judge:
        slot, ready = judge._slots[0], []
        for task in (*tasks, *tasks[::-1], *halves, *halves):
            verdict = judge.evaluate(task, rewritten(tasks[0] if isinstance(task, Task) else task))
            assert verdict.correct, verdict.reason
            assert verdict.speedup is not None
            ready.append(slot.prepared.was_ready)
        assert judge.evaluate(tasks[1], rewritten(tasks[2])).outcome is Outcome.WRONG_OUTPUT
    assert ready == [False, False, False, True, True, True, False, True, True, True]


def test_global_settings_of_one_reference_do_not_affect_another_task() -> None:
    altering = "import torch\ntorch.set_default_dtype(torch.float64)\n" + SOFTMAX
    plain = reference("x * torch.ones(40).sum() + torch.linspace(0, 1, 40)")
    narrow = rewritten(plain, ("torch.ones(40)", "torch.ones(40, dtype=torch.float32)"))
    narrow = rewritten(narrow + "class Model(", ("0, 1, 40", "0, 1, 40, dtype=torch.float32")).removesuffix(
        "class ModelNew("
    )
    with Judge("cpu", "torch", config=JudgeConfig(retries=0, workers=1, timed_calls=5, checks=2)) as judge:
        slot, examiners = judge._slots[0], []
        for task, candidate in (
            (plain, narrow),
            (altering, rewritten(SOFTMAX)),
            (altering, rewritten(SOFTMAX)),
            (plain, narrow),
        ):
            verdict = judge.evaluate(task, candidate)
            assert verdict.correct, verdict.reason
            examiners.append((slot._examiner, slot.prepared.was_ready))
    (first, _), (second, _), (third, is_ready), (fourth, _) = examiners
    assert first is second is third is not fourth
    assert is_ready


def test_task_that_finds_too_little_memory_is_prepared_again_with_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_coder.judge.examiner import service as examiner
    from kernel_coder.judge.examiner.randomness import Seeds
    from kernel_coder.judge.examiner.refusals import Refused, TooLarge

    tried: list[bool] = []

    def make(*arguments: Any, whole: bool = False) -> str:
        tried.append(whole)
        if not whole:
            raise TooLarge("too large beside others")
        return "ready"

    monkeypatch.setattr(examiner, "PreparedTask", make)
    turns = GpuTurns(lock=0)
    service = examiner._Service(lambda: None, turns)
    request = PrepareTask(task={"reference": ""}, config={}, device="cpu", backend="torch", is_timed=False, lock=None)
    assert service._made(request, JudgeConfig(), Seeds(1)) == "ready"
    assert tried == [False, True]
    turns.lock = None  # without a lock there is no other task to wait for
    with pytest.raises(Refused, match="too large beside others"):
        service._made(request, JudgeConfig(), Seeds(1))


def test_a_large_task_is_forgotten_after_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks wait for its memory. On a CPU no task is large, so the test marks one as large."""
    task = SOFTMAX + "\n# large\n"
    ask = Examiner.ask

    def as_of_a_gpu(examiner: Examiner, request: Message, *others: Any) -> Message:
        answer: Message = ask(examiner, request, *others)  # type: ignore[arg-type]
        if isinstance(request, PrepareTask) and isinstance(answer, Prepared):
            return replace(answer, is_large=request.task["reference"] == task)
        return answer

    monkeypatch.setattr(Examiner, "ask", as_of_a_gpu)
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timed_calls=5, checks=2)) as judge:
        slot = judge._slots[0]
        for one, is_there in ((SOFTMAX, True), (task, False), (SOFTMAX, True)):
            assert judge.evaluate(one, rewritten(SOFTMAX)).correct
            assert (slot._reference is not None) is is_there
        assert slot.prepared.was_ready  # a small task stays prepared


def test_reference_that_kills_the_examiner_is_a_harness_failure_and_is_not_scored() -> None:
    deadly = reference("__import__('os').abort()")
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timing=False)) as judge:
        verdict = judge.evaluate(deadly, rewritten(SOFTMAX))
        assert verdict.outcome is Outcome.HARNESS_FAILED
        assert not verdict.is_scored
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct


def test_candidate_that_makes_the_reference_fail_gets_the_outcome_crashed() -> None:
    """The candidate and the reference read the same inputs. A thread of this candidate overwrites them."""
    task = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 64)
    def forward(self, ids):
        return torch.tanh(self.table(ids))
def get_inputs():
    return [torch.randint(0, 50, (128,))]
def get_init_inputs():
    return []
"""
    spoils = """
import threading, time
SEEN, CALLS = {}, [0]
def spoil():
    while CALLS[0] < 90:
        time.sleep(0.001)
    while True:
        for ids in list(SEEN.values()):
            ids[-1] = 1 << 40
threading.Thread(target=spoil, daemon=True).start()
""" + rewritten(
        task,
        ("(ids))", "(ids % 50))"),
        ("        return", "        CALLS[0] += 1; SEEN[ids.data_ptr()] = ids\n        return"),
    )
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timed_calls=100)) as judge:
        verdict = judge.evaluate(task, spoils)
        assert verdict.outcome is Outcome.CRASHED, verdict.reason
        assert judge.evaluate(task, rewritten(task)).correct


def test_device_that_fails_its_probes_is_out_of_service_and_every_pair_gets_a_verdict(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def examine(slot: Any, maker: Any) -> Verdict:
        asked.append(maker.task.id)
        raise HarnessError("CUDA error: an uncorrectable ECC error was encountered")

    with Judge("cpu", "torch", config=JudgeConfig(workers=1, retries=1)) as judge:
        monkeypatch.setattr("kernel_coder.judge.supervisor.slot.Slot.examine", examine)
        verdicts = list(judge.evaluate_many([(SOFTMAX, rewritten(SOFTMAX))] * 5))
    assert {verdict.outcome for verdict in verdicts} == {Outcome.HARNESS_FAILED}
    assert asked.count("probe") == MAX_PROBES
    assert len(asked) == 2 + MAX_PROBES
    assert verdicts[-1].reason is not None
    assert "out of service" in verdicts[-1].reason
    assert "ECC" in verdicts[-1].reason
    assert [record.levelname for record in caplog.records if "out of service" in record.message] == ["CRITICAL"]


def test_a_verdict_s_seed_makes_the_same_inputs_again() -> None:
    wrong = rewritten(SOFTMAX, ("dim=-1", "dim=0"))
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, timing=False)) as judge:
        first, other = judge.evaluate(SOFTMAX, wrong), judge.evaluate(SOFTMAX, wrong)
    assert first.feedback != other.feedback
    assert first.seeds != other.seeds
    config = JudgeConfig(workers=1, timing=False, seed=first.seeds[0])
    with Judge("cpu", "torch", config=config) as judge:
        assert judge.evaluate(SOFTMAX, wrong).feedback == first.feedback


def test_candidate_can_be_judged_again_from_its_audit_record(tmp_path: Path) -> None:
    config = JudgeConfig(workers=1, timing=False, audit_dir=str(tmp_path))
    with Judge("cpu", "torch", config=config) as judge:
        verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX, ("dim=-1", "dim=0")))
        (path,) = tmp_path.iterdir()
        record = json.loads(path.read_text())
        assert Verdict.from_json(json.dumps(record["verdict"])) == verdict
        task = Task(source="record", **record["task"])
        again = JudgeConfig.model_validate(record["config"] | {"seed": verdict.seeds[0], "audit_dir": None})
    with Judge("cpu", "torch", config=again) as judge:
        repeated = judge.evaluate(task, record["candidate"])
    assert replace(repeated, stage_s={}) == replace(verdict, stage_s={})


def test_give_up_waiting_ends_waiting_candidates_and_lets_running_ones_finish() -> None:
    with (
        Judge("cpu", "torch", config=JudgeConfig(timing=False, workers=1)) as judge,
        ThreadPoolExecutor(3) as pool,
    ):
        judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
        slow = rewritten(SOFTMAX, ("return torch.softmax", "import time; time.sleep(0.2); return torch.softmax"))
        asked = [pool.submit(judge.evaluate, SOFTMAX, slow) for _ in range(3)]
        while len(judge._queue._waiting) < 2:
            time.sleep(0.01)
        judge.give_up_waiting()
        outcomes = [one.result().outcome for one in asked]
        assert sorted(outcomes) == [Outcome.CORRECT, Outcome.HARNESS_FAILED, Outcome.HARNESS_FAILED]
        assert judge.evaluate(SOFTMAX, rewritten(SOFTMAX)).correct


def test_closed_judge_leaves_no_processes_and_no_descriptors(
    own_servers: Callable[[], AbstractContextManager[None]],
) -> None:
    def children() -> set[str]:
        return {
            child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
        }

    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    with own_servers(), Judge("cpu", "torch", config=JudgeConfig(workers=2)) as judge:
        list(judge.evaluate_many([(SOFTMAX, rewritten(SOFTMAX))] * 4))
    assert children() <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    with pytest.raises(ValueError, match="the judge is closed"):
        judge.evaluate(SOFTMAX, rewritten(SOFTMAX))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:N; got 'tpu'"),
        ({"backend": "pascal"}, "backend must be one of triton, cuda, cpp, torch; got 'pascal'"),
    ],
)
def test_invalid_device_or_backend_is_named_in_the_error(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Judge(**arguments)  # type: ignore[arg-type]


def test_a_gpu_gets_only_as_many_workers_as_its_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "memory", lambda device: nvml.Memory(0, 80 << 30))
    with pytest.raises(ValueError, match=r"workers must be at most 21 on a GPU with 80 GiB of memory.* got 28"):
        Judge("cuda", config=JudgeConfig(workers=28))
    as_asked = JudgeConfig(workers=21)
    assert _with_workers_that_fit(as_asked, "cuda:0") is as_asked
    monkeypatch.setattr(JudgeConfig, "parallel", lambda self: self.workers or 12)
    monkeypatch.setattr(nvml, "memory", lambda device: nvml.Memory(0, 24 << 30))
    assert _with_workers_that_fit(JudgeConfig(), "cuda:0").workers == 6
    monkeypatch.setattr(nvml, "memory", lambda device: None)
    assert _with_workers_that_fit(JudgeConfig(workers=99), "cuda:0").workers == 99


@pytest.mark.long
def test_the_reference_is_timed_under_torch_compile_too() -> None:
    config = JudgeConfig(compile_baseline=True, timed_calls=10, hidden_shapes=False, workers=1)
    with Judge("cpu", "torch", config=config) as judge:
        verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
    assert verdict.correct, verdict.reason
    assert verdict.reference_compile_ms is not None
    assert verdict.reference_compile_ms > 0


INTERPRETER_ONLY = SOFTMAX_KERNEL.replace(
    "    e = tl.exp(x - tl.max(x))\n", "    seen = {}\n    seen['e'] = tl.exp(x - tl.max(x))\n    e = seen['e']\n"
)


def test_kernel_that_only_the_interpreter_runs_does_not_compile_for_a_gpu() -> None:
    assert INTERPRETER_ONLY != SOFTMAX_KERNEL
    with Judge("cpu", "triton", config=JudgeConfig(workers=1)) as judge:
        assert judge.evaluate(SOFTMAX, INTERPRETER_ONLY).correct
    with Judge("cpu", "triton", config=JudgeConfig(workers=1, compile_for="sm_90")) as judge:
        right = judge.evaluate(SOFTMAX, SOFTMAX_KERNEL)
        verdict = judge.evaluate(SOFTMAX, INTERPRETER_ONLY)
    assert right.correct
    assert right.kernels.startswith("softmax_kernel: ")
    assert right.kernels in right.feedback
    assert verdict.outcome is Outcome.COMPILE_ERROR
    assert verdict.reason is not None
    assert "does not compile for sm_90" in verdict.reason
    assert "seen" in verdict.feedback


SCALE = reference("x * self.g", init="self.g = nn.Parameter(torch.linspace(1, 2, 40))")

SCALE_KERNEL = (
    TRITON
    + """import os
@triton.jit
def scale_kernel(x_ptr, g_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns)
    g = tl.load(g_ptr + column, mask=column < columns)
    tl.store(out_ptr + row * columns + column, x * g, mask=column < columns)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.linspace(1, 2, 40))
        if os.environ.get("TRITON_INTERPRET") != "1":
            pass
    def forward(self, x):
        out = torch.empty_like(x)
        scale_kernel[(x.shape[0],)](x, self.g, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
"""
)


@pytest.mark.long
def test_candidate_that_fails_only_when_compiled_for_a_gpu_gets_the_right_outcome() -> None:
    """An error is a compile error, whatever the Runner reports. A crash and a lack of memory keep their outcomes."""
    ends = [
        ("del self.g; self.h = nn.Parameter(torch.ones(3))", "compile_error", "parameters cannot be loaded into it"),
        ("raise RuntimeError('bad\\n\\x1b[0m')", "compile_error", "RuntimeError: bad"),
        (
            "from kernel_coder.judge.runner.candidate import BuildFailed; raise BuildFailed(1)",
            "compile_error",
            "no class ModelNew",
        ),
        ("raise MemoryError", "out_of_memory", "it ran out of memory"),
        ("os._exit(3)", "crashed", "its process ended"),
    ]
    with Judge("cpu", "triton", config=JudgeConfig(workers=1, compile_for="sm_90", checks=1)) as judge:
        assert judge.evaluate(SCALE, SCALE_KERNEL).correct
        for end, outcome, said in ends:
            verdict = judge.evaluate(SCALE, SCALE_KERNEL.replace("            pass\n", f"            {end}\n"))
            assert verdict.outcome == outcome, verdict.reason
            assert verdict.reason is not None
            assert said in verdict.reason
            if outcome == "compile_error":
                assert verdict.reason.startswith("it does not compile for sm_90: ")
                assert "it does not compile for sm_90" in verdict.feedback


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"compile_for: an architecture must be one of sm_70.*got 'hopper'"):
        JudgeConfig(compile_for="hopper")


def test_request_that_arrives_while_the_runner_creates_its_context_is_not_lost() -> None:
    from kernel_coder.judge.runner.process import _asked_meanwhile

    ours, theirs = Channel.pair()
    assert _asked_meanwhile(theirs) is None
    ours.send(int(Say.PING))
    assert _asked_meanwhile(theirs) is None
    assert ours.receive(timeout_s=1.0).kind == Say.PING
    ours.send(int(Say.TASK))
    found = _asked_meanwhile(theirs)
    assert found is not None
    assert found.kind == Say.TASK
    ours.close()
    with pytest.raises(ChannelClosed):
        _asked_meanwhile(theirs)
    theirs.close()


def test_candidates_that_share_a_device_lock_get_the_right_verdicts(tmp_path: Path) -> None:
    """As on a GPU, the judge times one candidate alone. The others wait, and their verdicts contain the wait."""
    wrong = rewritten(SOFTMAX, ("dim=-1)", "dim=-1) * 1.01"))
    candidates = [rewritten(SOFTMAX) + f"# {number}\n" for number in range(6)] + [wrong]
    with Judge("cpu", "torch", config=JudgeConfig(workers=3, timed_calls=200, prestart=True)) as judge:
        judge._processes.lock_path = str(tmp_path / "lock")
        Path(judge._processes.lock_path).touch()
        verdicts = list(judge.evaluate_many((SOFTMAX, one) for one in candidates))
    assert [one.outcome for one in verdicts] == [Outcome.CORRECT] * 6 + [Outcome.WRONG_OUTPUT]
    assert all(one.speedup is not None for one in verdicts[:6])
    assert any(one.stage_s["wait"] > 0.001 for one in verdicts)
    assert all(0 <= one.stage_s["wait"] <= one.stage_s["all"] for one in verdicts)


def hanging_from(call: int) -> str:
    """Return a candidate for :data:`SOFTMAX` that hangs in this call and all later ones. The first call is number 1."""
    return rewritten(
        SOFTMAX,
        (
            "def forward(self, x):",
            f"calls = 0\n    def forward(self, x):\n        self.calls += 1\n"
            f"        while self.calls >= {call}:\n            pass",
        ),
    )


@pytest.mark.long
def test_wait_for_a_busy_device_does_not_count_against_the_candidates_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Supervisor does not mistake an Examiner that waits for one that hangs, either."""
    monkeypatch.setattr("kernel_coder.judge.wire.limits.GRACE_S", 1.0)
    monkeypatch.setattr("kernel_coder.judge.supervisor.slot.PATIENCE_S", 1.0)
    lock = tmp_path / "lock"
    lock.touch()
    is_over = threading.Event()

    def neighbour() -> None:
        """Hold the device alone for a second, again and again."""
        with lock.open("r+b") as file:
            while not is_over.is_set():
                with GpuTurns(file.fileno()).alone():
                    is_over.wait(1.0)
                time.sleep(0.01)

    config = JudgeConfig(workers=1, timed_calls=200, timeout_s=4)
    with Judge("cpu", "torch", config=config) as judge, ThreadPoolExecutor(1) as pool:
        judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
        judge._processes.lock_path = str(lock)
        busy = pool.submit(neighbour)
        try:
            verdict = judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
        finally:
            is_over.set()
        busy.result()
    assert verdict.correct, verdict.reason
    assert verdict.stage_s["wait"] > 6


@pytest.mark.long
def test_call_that_hangs_holds_the_device_only_for_a_limited_time(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with (
        Judge("cpu", "torch", config=JudgeConfig(workers=1, timeout_s=20)) as judge,
        lock.open("r+b") as file,
        ThreadPoolExecutor(1) as pool,
    ):
        judge.evaluate(SOFTMAX, rewritten(SOFTMAX))
        judge._processes.lock_path = str(lock)
        verdict = pool.submit(judge.evaluate, SOFTMAX, hanging_from(5))
        longest = 0.0
        while not verdict.done():
            asked = time.monotonic()
            with GpuTurns(file.fileno()).alone():
                longest = max(longest, time.monotonic() - asked)
            time.sleep(0.01)
        assert verdict.result().outcome is Outcome.TIMEOUT
        assert verdict.result().stage_s["all"] > 20
    assert HELD_S - 1 < longest < HELD_S + 5


@pytest.mark.long
def test_timed_call_that_hangs_ends_before_the_time_limit(tmp_path: Path) -> None:
    with Judge("cpu", "torch", config=JudgeConfig(workers=1, checks=1, timed_calls=400, timeout_s=60)) as judge:
        judge._processes.lock_path = str(tmp_path / "lock")
        Path(judge._processes.lock_path).touch()
        verdict = judge.evaluate(SOFTMAX, hanging_from(10))
    assert verdict.outcome is Outcome.TIMEOUT
    assert verdict.reason == f"a request took over {MIN_LIMIT_S:g} s"
    assert verdict.stage_s["all"] < 40


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        ("raise ValueError('enough')", Outcome.RUNTIME_ERROR),
        ("os._exit(1)", Outcome.CRASHED),
        pytest.param("time.sleep(1000)", Outcome.TIMEOUT, marks=pytest.mark.long),
    ],
)
def test_candidate_that_fails_in_a_timed_call_gets_its_verdict_at_once_and_so_does_the_next(
    device: str, failure: str, outcome: Outcome
) -> None:
    count = f"calls = 0\n    def forward(self, x):\n        self.calls += 1\n        if self.calls > 10: {failure}"
    failing = "import os, time\n" + rewritten(SOFTMAX, ("def forward(self, x):", count))
    config = JudgeConfig(workers=1, checks=1, timed_calls=400, timeout_s=60, retries=0)
    with Judge(device, "torch", config=config) as judge:
        verdicts = [judge.evaluate(SOFTMAX, one) for one in (failing, rewritten(SOFTMAX))]
    assert [one.outcome for one in verdicts] == [outcome, Outcome.CORRECT], [one.reason for one in verdicts]
    assert "time" in verdicts[0].stage_s
    assert verdicts[0].stage_s["all"] < 20


@pytest.mark.long
def test_candidate_beside_an_equally_slow_reference_gets_the_outcome_timeout() -> None:
    reference = rewritten(SOFTMAX, ("def forward(self, x):", "def forward(self, x):\n        time.sleep(0.15)"))
    reference = f"import time\n{reference}".replace("class ModelNew(", "class Model(")
    candidate = reference.replace("class Model(", "class ModelNew(")
    config = JudgeConfig(workers=1, checks=1, timed_calls=64, timeout_s=3, retries=0, null_candidates=False)
    with Judge("cpu", "torch", config=config) as judge:
        verdicts = [judge.evaluate(reference, f"{candidate}time.sleep({number} * 0.075)\n") for number in (0, 2)]
    assert [one.outcome for one in verdicts] == [Outcome.TIMEOUT] * 2, [one.reason for one in verdicts]


def test_runner_gives_back_memory_when_asked_to_prepare_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_coder.judge.runner import process

    asked: list[Any] = []
    candidate = SimpleNamespace(
        plan={"awake_s": 0.0},
        make_ready=lambda *calls: asked.append(calls),
        give_back=lambda: asked.append("gives back"),
        close=lambda: None,
    )
    monkeypatch.setattr(process, "_build", lambda channel: candidate)
    ours, theirs = Channel.pair()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(process._serve, theirs, None)
        ours.send(int(Say.TASK))
        for values in ((0, 5, 0), (0, 0, 0)):
            ours.send(int(Say.PING), values=values)
            assert ours.receive(timeout_s=10.0).kind == Say.PING
        ours.close()
        with pytest.raises(ChannelClosed):
            serving.result(10.0)
    theirs.close()
    assert asked == [(0, 5, 0), "gives back"]


def test_a_profiled_call_copies_no_outputs() -> None:
    from kernel_coder.judge.runner.candidate import Candidate

    x, place = torch.arange(4.0), torch.zeros(4)
    found = Candidate.__new__(Candidate)
    called: list[Any] = []
    found.model, found.trained = lambda x: called.append(x) or 2 * x, []  # type: ignore[assignment, return-value]
    call = SimpleNamespace(args=[x], cotangents=None, places=[place])
    found.prepared = SimpleNamespace(at=lambda *place: {(0, 3): call}[place])  # type: ignore[assignment]
    found._only_model(0, 3)
    assert called == [x]
    assert not place.any()


@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.WEIGHED])
@pytest.mark.parametrize("computes", [True, False])
def test_gradients_are_on_in_every_mode_if_the_task_compares_them(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, computes: bool
) -> None:
    from kernel_coder.judge.runner import candidate
    from kernel_coder.judge.runner.candidate import Candidate

    found, seen = Candidate.__new__(Candidate), list[bool]()
    found.device, found.has_gradients, found.prepared = torch.device("cpu"), False, Mock()
    found.plan = {"variants": [{"cotangents": [[[4], "float32", 0]] if computes else []}], "trained": ["weight"]}
    found.model, found.loaded = torch.nn.Linear(4, 1), LoadedState(Loaded.BY_NAME, {"weight": "weight"})
    monkeypatch.setattr(candidate, "most_allocated", lambda calls: calls() or 7)
    for name in ("_call", "_only_model"):
        monkeypatch.setattr(found, name, lambda *_: seen.append(torch.is_grad_enabled()))
    assert found.call(0, 3, 0, mode) == ((7,) if mode is Mode.WEIGHED else ())
    assert seen == [computes] * 3
    assert not computes or found.trained[0] is found.model.weight
    assert torch.is_grad_enabled()
