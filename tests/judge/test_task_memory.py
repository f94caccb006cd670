"""How much device memory a task takes: KernelBench's largest inputs are 16 GiB, and several workers share a GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_coder import ops
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.judge.examiner import memory_estimates, null_candidates, prepared_task
from kernel_coder.judge.examiner.checks import AHEAD_BYTES, Checker
from kernel_coder.judge.examiner.memory_estimates import SLOT_BYTES, judging_bytes, several_bytes, shares_of, slot_bytes
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.examiner.refusals import Refused, Unsteady
from kernel_coder.judge.examiner.samples import SampleMaker
from kernel_coder.judge.examiner.task_memory import Variant
from kernel_coder.judge.examiner.timing.requests import RequestMaker, each_call
from kernel_coder.judge.examiner.tolerance import SAMPLED
from kernel_coder.judge.gpu.turns import MEMORY_SHARES, GpuTurns
from kernel_coder.judge.runner import candidate, process
from kernel_coder.judge.runner.prepared_calls import PreparedCalls
from kernel_coder.judge.runner.process_settings import GeneratorWatch
from kernel_coder.judge.wire.channel import Frame
from kernel_coder.judge.wire.messages import Mode, Say, Status
from kernel_coder.judge.wire.trees import tensors_of
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x, *more):
        {before}
        return {result}
def get_inputs():
    return [torch.rand({shape}){more}]
def get_init_inputs():
    return []
"""


def source(
    result: str, shape: str = "16, 16384", init: str = "pass", before: str = "pass", more: str = ""
) -> dict[str, Any]:
    text = REFERENCE.format(init=init, before=before, result=result, shape=shape, more=more)
    return {"reference": text, "entry_point": "Model", "precision": "fp32"}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(task: dict[str, Any], **config: Any) -> PreparedTask:
    return PreparedTask(task, JudgeConfig(**config), torch.device("cpu"), Seeds(3), GpuTurns())


class Ledger(TorchDispatchMode):
    """Records the largest number of bytes that all tensors held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, torch.Tensor) and one.device.type != "meta":
                storage = StorageWeakRef(one.untyped_storage())
                self._live[storage.cdata] = storage, one.untyped_storage().nbytes()
        self._live = {cdata: entry for cdata, entry in self._live.items() if not entry[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._live.values()))
        return out


@pytest.mark.parametrize(
    ("result", "init", "shape", "inside"),
    [
        ("x * torch.sigmoid(x)", "pass", "16, 16384", 2),
        ("x / torch.mean(torch.abs(x), dim=1, keepdim=True)", "pass", "16, 16384", 0),
        ("self.norm(x)", "self.norm = torch.nn.InstanceNorm2d(4)", "4, 4, 128, 128", 0),
        ("self.conv(x)", "self.conv = torch.nn.Conv2d(1, 8, 3)", "4, 1, 128, 128", 0),
        ("self.pool(x)", "self.pool = torch.nn.AvgPool2d(11)", "4, 4, 128, 128", 0),
    ],
)
def test_memory_of_a_task_and_its_samples_is_a_few_times_its_inputs_and_outputs(
    monkeypatch: pytest.MonkeyPatch, result: str, init: str, shape: str, inside: int
) -> None:
    """`inside`: memory that the reference itself takes in a call in double precision, in units of its outputs' size."""
    monkeypatch.setattr(null_candidates, "KEPT_ELEMENTS", 1 << 10)
    with Ledger() as preparing:
        found = made(source(result, shape, init))

    def allowed(variant: Variant) -> float:
        i, o = (sum(spec.nbytes for spec in specs) for specs in (variant.input_specs, variant.output_specs))
        places = 32 * min(SAMPLED, o // 4)  # indices of the elements whose errors are kept, and the errors
        return max(3 * i + (4 + inside) * o, i + 5 * o, 4 * i) + places + 200_000

    assert len(found.families) >= 4
    assert preparing.most < max(map(allowed, found.variants))
    for family in found.families:
        with Ledger() as sampling:
            found.samples.sample(family)
        assert sampling.most < allowed(found.variants[0]), family


@pytest.mark.parametrize("result", ["x * torch.sigmoid(x)", "(x.softmax(-1), x.argmax(-1))"])
def test_without_memory_for_the_shaken_oracle_the_reference_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, result: str
) -> None:
    found = made(source(result))
    with Ledger() as plain:
        usual = found.samples.sample("own")
    oracle_outputs, calls = SampleMaker._oracle_outputs, itertools.count()

    def without_memory(maker: SampleMaker, *arguments: Any) -> list[torch.Tensor] | None:
        if next(calls) == 1:  # the second pass is the shaken one
            raise torch.OutOfMemoryError("CUDA out of memory")
        return oracle_outputs(maker, *arguments)

    monkeypatch.setattr(SampleMaker, "_oracle_outputs", without_memory)
    with Ledger() as short:
        sample = found.samples.sample("own")
    assert next(calls) == 2
    assert short.most <= plain.most
    assert [one.family for one in (usual, sample)] == ["own", "own"]
    for ours, theirs in zip(sample.tolerances, usual.tolerances, strict=True):
        assert theirs.rtol <= 1.01 * ours.rtol
        assert ours.atol <= 4 * theirs.atol
        assert ours.rtol <= 4 * theirs.rtol


@pytest.mark.parametrize("kept", [1 << 25, 1000, 64, 1])
def test_null_candidate_of_another_calls_output_is_judged_on_some_elements_as_on_all(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(null_candidates, "KEPT_ELEMENTS", kept)
    constant = "self.w = torch.nn.Parameter(torch.rand(64, 64))"
    with pytest.raises(Refused, match="another call's output would pass"):
        made(source("(self.w + 0 * x).exp()", "64, 64", constant))
    assert made(source("(self.w + x).exp()", "64, 64", constant)).families


@pytest.mark.parametrize("elements", [0, 1, 63, 64, 65, 127, 128, 129, 1000, 4097])
def test_kept_elements_stay_within_the_limit_and_are_evenly_spread(
    monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    monkeypatch.setattr(null_candidates, "KEPT_ELEMENTS", 64)
    kept = null_candidates.some_of(torch.arange(elements))
    assert len(kept) <= 64
    assert len(kept) == elements or len(kept) > 64 / 4
    gaps = kept.diff().unique().tolist()
    assert len(gaps) <= 1
    assert elements <= 64 or gaps[0] % 2 == 1  # an odd step reaches every column, since most rows have an even length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shaken_numbers_move_by_about_a_rounding_error_in_both_directions(dtype: torch.dtype) -> None:
    found = made(source("x * 2 + x.sin()"))
    x = torch.randn(4096, dtype=dtype)
    before = x.clone()
    shaken = found.samples._shaken(x)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    off = shaken / x.double() - 1
    assert shaken.dtype == torch.float64
    assert torch.equal(x, before)
    assert off.abs().max() <= 2 * eps
    assert (off > 0).float().mean() > 0.2  # in double precision a quarter is expected; the rest rounds to no change
    assert (off < 0).float().mean() > 0.2


@pytest.mark.parametrize(
    ("given", "expected"),
    [(torch.arange(5), torch.int64), (torch.tensor([True]), torch.bool), (torch.ones(3) * 1j, torch.complex128)],
)
def test_integers_booleans_and_complex_numbers_are_copied_without_shaking(
    given: torch.Tensor, expected: torch.dtype
) -> None:
    found = made(source("x * 2 + x.sin()")).samples._shaken(given)
    assert found.dtype == expected
    assert torch.equal(found, given.to(expected))
    assert found.data_ptr() != given.data_ptr()


def test_reference_that_writes_to_an_integer_input_does_not_change_the_candidates_inputs() -> None:
    found = made(source("x * more[0]", before="more[0].add_(1)", more=", torch.full((16, 1), 7)"))
    for family in found.families:
        sample = found.samples.sample(family)
        assert list(sample.changed) == [1]
        assert tensors_of(sample.inputs)[1].unique().tolist() == [7]
        expected = tensors_of(sample.inputs)[0].double() * 8
        assert ops.compare(sample.expected[0], expected, rtol=1e-12).read().matches


def test_oracle_is_right_for_a_reference_that_returns_the_same_memory_each_time() -> None:
    """The oracle runs twice, and the second run must not change the outputs of the first."""
    init = "self.register_buffer('seen', torch.zeros(16, 16384))"
    found = made(source("self.seen", init=init, before="self.seen.copy_(x.sin())"))
    sample = found.samples.sample("own")
    exact = tensors_of(sample.inputs)[0].double().sin()
    assert torch.equal(sample.expected[0], exact)


@pytest.mark.parametrize(("held", "most"), [(0, 5 << 20), (3 << 20, 9 << 20)])
def test_memory_for_judging_is_estimated_from_the_memory_of_one_call(
    monkeypatch: pytest.MonkeyPatch, held: int, most: int
) -> None:
    found = made(source("x * 2 + x.sin()"))
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: most)
    gpu = torch.device("cuda")
    with memory_estimates.most_allocated(gpu) as taken:
        pass
    assert asked == [gpu]
    assert taken() == most - held
    size, slots = 4 * 16 * 16384, SLOT_BYTES["cpu"]
    monkeypatch.setattr(prepared_task, "most_allocated", lambda device: nullcontext(lambda: most - held))
    assert found._call_once() == (False, judging_bytes(size, size, most - held, slots=slots))
    monkeypatch.setattr(prepared_task, "most_allocated", lambda device: nullcontext(lambda: 0))
    assert found._call_once() == (False, judging_bytes(size, size, size, slots=slots))


@pytest.mark.parametrize("gib", [80, 94, 141, 192])
def test_a_dozen_tasks_with_tensors_of_64_mb_fit_into_a_large_gpu(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=gib << 30))
    size, slots = 64 << 20, slot_bytes(torch.device("cuda"))
    assert slots == min(2 << 30, (gib << 30) // 64)
    for wanted in (
        memory_estimates.MEMORY_PER_INPUT_BYTE * size + several_bytes(size, slots),
        judging_bytes(size, size, size, 2, slots),
    ):
        assert 0 < 12 * shares_of(wanted, gib << 30, 12) <= MEMORY_SHARES
        assert wanted < memory_estimates.SMALL_PART * (gib << 30)


def test_small_tasks_without_a_reservation_take_at_most_a_fifth_of_the_memory() -> None:
    """Large tasks do not count the memory of small tasks, so all workers' small tasks must leave most of it free."""
    for gib in (24, 80, 141):
        for workers in (1, 4, 12):
            most = next(mib for mib in range(1, gib << 10) if shares_of(mib << 20, gib << 30, workers))
            assert workers * most <= (gib << 10) / 5


@pytest.mark.parametrize(("precision", "longer"), [("fp32", 2), ("tf32", 2), ("bf16", 4), ("fp16", 4)])
def test_memory_estimate_uses_the_size_ratio_of_double_precision(
    monkeypatch: pytest.MonkeyPatch, precision: str, longer: int
) -> None:
    found = made({**source("x * 2 + x.sin()"), "precision": precision})
    size = found.reference.dtype.itemsize * 16 * 16384
    assert found._call_once()[1] == judging_bytes(size, size, size, longer, SLOT_BYTES["cpu"])


@pytest.mark.parametrize(
    ("kind", "lock", "whole", "backward", "times"),
    [
        ("cuda", 7, False, False, 2),
        ("cuda", 7, False, True, 1),  # the estimate leaves out what an autograd graph takes
        ("cuda", 7, True, False, 0),
        ("cuda", None, False, False, 0),
        ("cpu", 7, False, False, 0),
    ],
)
def test_task_on_a_shared_gpu_reserves_memory_for_its_inputs_and_then_for_its_call(
    monkeypatch: pytest.MonkeyPatch, kind: str, lock: int | None, whole: bool, backward: bool, times: int
) -> None:
    monkeypatch.setattr(prepared_task, "slot_bytes", lambda device: 1 << 10)
    found = PreparedTask.__new__(PreparedTask)
    found.device = SimpleNamespace(type=kind)  # type: ignore[assignment]
    found.turns = SimpleNamespace(lock=lock, shared=nullcontext)  # type: ignore[assignment]
    found.config = SimpleNamespace(backward=backward)  # type: ignore[assignment]
    asked: list[int] = []
    found.reference = SimpleNamespace(  # type: ignore[assignment]
        own_inputs=lambda: asked.append(-1) or [torch.zeros(8), 3, torch.zeros(2)]
    )
    found._call_once = lambda: asked.append(-2) or (True, 777)  # type: ignore[assignment, method-assign, func-returns-value]
    found._reserve = asked.append  # type: ignore[method-assign, assignment]
    found._call_first(whole)
    guessed = memory_estimates.MEMORY_PER_INPUT_BYTE * 40 + several_bytes(40, 1 << 10)
    # Inputs are made only if their size is needed.
    assert asked == [[-2], [-1, guessed, -2], [-1, guessed, -2, 777]][times]
    assert found.reference.changes_inputs


FORGETS = """
import weakref, torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = lambda: None
    def forward(self, x):
        if self.last() is not None:
            raise RuntimeError("the last call's result is still held")
        out = torch.softmax(x, 1)
        self.last = weakref.ref(out)
        return out
"""


@pytest.mark.long
def test_runner_does_not_hold_the_output_of_the_last_call() -> None:
    with Judge("cpu", config=JudgeConfig(timed_calls=20)) as judge:
        verdict = judge.evaluate(source("torch.softmax(x, 1)")["reference"], FORGETS, "torch")
    assert verdict.correct, verdict.feedback
    assert verdict.speedup is not None


@pytest.mark.parametrize(("is_timed", "given_back"), [(0, 1), (1, 0)])
def test_memory_is_given_back_after_calls_that_are_not_timed(is_timed: int, given_back: int) -> None:
    asked: list[str] = []
    fake = SimpleNamespace(
        streams=SimpleNamespace(hold=lambda: asked.append("hold")),
        call=lambda *values: asked.append("call") or (),
        give_back=lambda: asked.append("give back"),
        generators=GeneratorWatch(),
        facts="",
    )
    request = (0, 1, 0, int(Mode.PLAIN), is_timed, 0, 0)
    assert process._answer(fake, request) == (Status.OK, ())  # type: ignore[arg-type]
    assert asked == ["call"] if is_timed else ["hold", "call", "give back"]
    assert asked.count("give back") == given_back


@pytest.mark.parametrize("is_much", [False, True])
def test_fresh_memory_is_filled_again_only_if_much_memory_was_given_back(
    monkeypatch: pytest.MonkeyPatch, is_much: bool
) -> None:
    filled: list[int] = []
    monkeypatch.setattr(candidate, "free_memory", lambda device: is_much)
    monkeypatch.setattr(candidate, "dirty_for_outputs", lambda device, size: filled.append(size))
    outputs = SimpleNamespace(size=math.prod((2, 3)))
    prepared = PreparedCalls({}, outputs, outputs)  # type: ignore[arg-type]
    prepared._made[0] = [torch.zeros(6)]
    fake = SimpleNamespace(device=torch.device("cpu"), outputs=outputs, prepared=prepared)
    candidate.Candidate.give_back(fake)  # type: ignore[arg-type]
    assert filled == ([6] if is_much else [])
    assert not prepared._made


@pytest.mark.parametrize(
    ("is_large", "is_first", "expected"),
    [(True, False, ["prepare for 0", "sample"]), (True, True, ["sample"]), (False, False, ["sample"])],
)
def test_a_runner_of_a_large_task_gives_back_its_memory_before_the_next_sample(
    is_large: bool, is_first: bool, expected: list[str]
) -> None:
    seen: list[str] = []

    class SampledError(Exception):
        pass

    def sample(family: str, variant: Any) -> None:
        seen.append("sample")
        raise SampledError

    variant = SimpleNamespace(slots=1, sizes=None)
    task = SimpleNamespace(variants=[variant], is_large=is_large, null_candidates=lambda: None, sample=sample)
    link = SimpleNamespace(prepare=lambda calls: seen.append(f"prepare for {calls}"))
    checker = Checker(task, link, "", GpuTurns())  # type: ignore[arg-type]
    checker._called = set() if is_first else {0}
    with pytest.raises(SampledError):
        checker.check("own", variant)  # type: ignore[arg-type]
    assert seen == expected


@pytest.mark.parametrize(
    ("sample_bytes", "answered_after", "ahead"),
    [(10, 99, ["a", "b", "a"]), (10, 2, ["a", "b"]), (10, 0, []), (AHEAD_BYTES // 2, 99, ["a", "b"])],
)
def test_samples_are_made_while_the_first_call_compiles_and_used_by_later_checks(
    sample_bytes: int, answered_after: int, ahead: list[str]
) -> None:
    """The Examiner makes samples until the answer arrives, and only while they take little memory."""
    seen: list[str] = []

    def sample(family: str, variant: Any) -> Any:
        seen.append(family)
        return SimpleNamespace(family=family)

    class Fake(Checker):
        def write(self, variant: Any, slot: int, sample: Any) -> torch.Tensor:
            return torch.zeros(1)

        def _checked(self, variant: Any, slot: int, sample: Any, *_: Any) -> bool:
            checked.append(sample.family)
            return True

    checked: list[str] = []
    variant = SimpleNamespace(slots=4, sizes=None, input_stride=sample_bytes, output_stride=0)
    task = SimpleNamespace(
        variants=[variant],
        is_large=False,
        null_candidates=lambda: None,
        sample=sample,
        device=torch.device("cpu"),
        reference=SimpleNamespace(changes_inputs=False),
    )
    frame = Frame(int(Say.CALL), int(Status.OK), (0,) * 7)
    link = SimpleNamespace(
        wait=lambda most_s: len(seen) > answered_after, answer=lambda *_, **__: frame, ask=lambda *_: None
    )
    checker = Fake(task, link, "", GpuTurns())  # type: ignore[arg-type]
    checker.families_ahead = ["a", "b", "a"]
    checker.check("own", variant)  # type: ignore[arg-type]
    assert seen == ["own", *ahead]
    checker.check_all(["a", "b", "a"], variant)  # type: ignore[arg-type]
    assert checked == ["own", "a", "b", "a"]
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("result", "launches"),
    [("x", 1), ("torch.relu(x)", 1), ("torch.tanh(x * 2).T.contiguous() - 0.3", 3)],
)
def test_a_reference_launches_a_kernel_for_each_operator_that_computes(result: str, launches: int) -> None:
    assert made(source(result, shape="4, 8"), null_candidates=False).launches() == launches


@pytest.mark.parametrize(("is_kept", "most"), [(False, 4), (True, 5)])
def test_timed_request_of_one_call_copies_its_outputs_only_if_it_is_kept(is_kept: bool, most: int) -> None:
    task = made(source("x * torch.sigmoid(x)"))
    maker = RequestMaker(SimpleNamespace(task=task))  # type: ignore[arg-type]
    maker._until_strange = 10
    variant = task.variants[0]
    with Ledger() as ledger:
        request = maker.make(1, True, is_kept)
    size = 16 * 16384 * 4
    taken = ledger.most - task.memory.region(variant, 1).untyped_storage().nbytes()  # this memory was allocated before
    assert most * size <= taken < (most + 0.5) * size  # inputs twice, the sigmoid, the product (twice if kept)
    x = each_call(request.staged, variant.input_specs[0], variant.input_stride, 1)
    assert torch.equal(request.expected[0], x * torch.sigmoid(x))
    assert request.expected[0].shape == (1, 16, 16384)


def test_timed_request_with_outputs_of_another_shape_is_refused() -> None:
    task = made(source("x * 2"))
    maker = RequestMaker(SimpleNamespace(task=task))  # type: ignore[arg-type]
    maker._until_strange = 10
    task.reference.own_outputs = lambda inputs, cotangents: [inputs[0][:1]]  # type: ignore[method-assign]
    for calls, is_kept in ((1, False), (1, True), (2, True)):
        with pytest.raises(Unsteady, match="other shapes from call to call"):
            maker.make(calls, True, is_kept)
