"""Which kernels are the candidate's own: launches of Triton kernels and extensions, device time, kernel facts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.judge.examiner.proof import WorkProof
from kernel_coder.judge.runner import contents
from kernel_coder.judge.runner.contents import fingerprint, is_one_value
from kernel_coder.judge.runner.device_time import KernelRecord, NoDeviceTime, device_records, kernel_share
from kernel_coder.judge.runner.kernel_facts import KernelFacts, demangled, kernels_in, library_facts, spellings
from kernel_coder.judge.runner.launch_hooks import record_launches
from kernel_coder.judge.runner.launches import Launches, Recorder
from kernel_coder.judge.runner.own_kernels import OwnKernels
from kernel_coder.judge.wire.messages import ONLY_OWN, Audit, Mode
from torch import Tensor

Script = Callable[[str], str]

#: A candidate that launches kernels in every way. `LIBRARY` is a module with a kernel that is not the candidate's.
CANDIDATE = '''
import torch, triton, triton.language as tl
import library_kernels

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

@triton.jit
def added(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 0.1 * tl.load(y + at, mask=at < n), mask=at < n)

@triton.jit
def fill(out, value, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.full((BLOCK,), value, tl.float32), mask=at < n)

@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0)))

@triton.jit
def nothing(x, out, n, BLOCK: tl.constexpr):
    pass

@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 3 * tl.load(x + at, mask=at < n), mask=at < n)

@triton.heuristics({"BLOCK": lambda arguments: 64})
@triton.jit
def guided(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 4 * tl.load(x + at, mask=at < n), mask=at < n)

made_from_text = """
def from_text(x):
    return x
"""
exec(compile(made_from_text, "<string>", "exec"))

def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)

def run(kernel, x, **named):
    out = torch.zeros_like(x)
    kernel[grid](x, out, x.numel(), **named)
    return out
'''

LIBRARY = """
import triton, triton.language as tl

@triton.jit
def foreign(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 5 * tl.load(x + at, mask=at < n), mask=at < n)
"""

PRELUDE = """
import os, sys, torch
from kernel_coder.judge.runner.device_time import NoDeviceTime, device_records, kernel_share
from kernel_coder.judge.runner.launch_hooks import record_launches, without_tuning
from kernel_coder.judge.runner.launches import Launches
from kernel_coder.judge.runner.own_kernels import OwnKernels
from kernel_coder.judge.wire.messages import ONLY_OWN, Audit, Mode
device = os.environ["KC_TEST_DEVICE"]
interpreted = device == "cpu"
import candidate, library_kernels
own = OwnKernels(candidate.__file__)
x = torch.randn(100, device=device)
if interpreted:
    first_configuration = without_tuning()
    first_configuration.__enter__()
candidate.run(candidate.tuned, x)  # compiled and tuned, as after the first call

def seen_in(mode, *calls):
    results = []
    with record_launches(own, mode) as seen:
        for kernel, *named in calls:
            results.append(candidate.run(kernel, x, **(named[0] if named else {"BLOCK": 64})))
    return seen, results
"""


@pytest.fixture(scope="module")
def candidate_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("candidate")
    (directory / "candidate.py").write_text(CANDIDATE)
    (directory / "library_kernels.py").write_text(LIBRARY)
    return directory


#: Runs code in a fork of a process that has imported everything. Each line of stdin is a file of code.
FORKING = """
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        out = os.open(line.strip() + ".out", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1), os.dup2(out, 2)
        status = 1
        try:
            exec(compile(open(line.strip()).read(), "script", "exec"), globals())
            status = 0
        except BaseException:
            __import__("traceback").print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def environment_of(device: str, candidate_directory: Path) -> dict[str, str]:
    """Return the environment of a script's process. Triton either interprets or compiles all kernels of a process, so
    scripts do not run in the tests' own process."""
    path = os.pathsep.join([str(candidate_directory), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, "KC_TEST_DEVICE": device}
    environment.pop("TRITON_INTERPRET", None)
    return environment | ({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if device == "cpu" else {})


@pytest.fixture(scope="module")
def interpreting(candidate_directory: Path) -> Iterator[Script]:
    """Runs code with interpreted Triton kernels, in forks of one process, because imports take seconds."""
    environment = environment_of("cpu", candidate_directory)
    command = [sys.executable, "-c", PRELUDE + FORKING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, env=environment, **pipes) as process:

        def run(code: str) -> str:
            file = candidate_directory / f"script{len(list(candidate_directory.iterdir()))}.py"
            file.write_text(textwrap.dedent(code))
            process.stdin.write(f"{file}\n")
            status = process.stdout.readline().strip()
            said = Path(f"{file}.out").read_text()
            assert status == "0", said
            return said

        yield run
        process.stdin.close()


@pytest.fixture
def script(device: str, candidate_directory: Path, request: pytest.FixtureRequest) -> Script:
    """Runs code after :data:`PRELUDE`, on the device."""
    if device == "cpu":
        return request.getfixturevalue("interpreting")

    def run(code: str) -> str:
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
        environment = environment_of(device, candidate_directory)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


# ---- Triton ----------------------------------------------------------------------------------------------------------


def test_every_own_launch_is_counted_and_described(script: Script) -> None:
    script("""
        c = candidate
        seen, results = seen_in(Mode.PLAIN, (c.double,), (c.tuned, {}), (c.guided, {}), (library_kernels.foreign,))
        assert [one.kernel for one in seen.launches] == ["double", "tuned", "guided"]
        assert (seen.count, seen.foreign, seen.moving) == (3, 1, 0)
        for result, factor in zip(results, (2, 3, 4, 5)):
            assert torch.equal(result, factor * x)
        first = seen.launches[0]
        assert first.tensors == ("x: float32 [100]", "out: float32 [100]")
        assert first.changed is None and first.only_moves_data is None
        if interpreted:
            assert first.compiled is None and not seen.by_name
        else:
            assert first.grid == (2, 1, 1) and first.compiled == "double" and len(first.hash) == 64
            assert seen.by_name == {"double": 1, "tuned": 1, "guided": 1}
            assert {"double", "tuned", "guided"} <= own.kernel_names() and "foreign" not in own.kernel_names()
            facts = seen.facts["double"]
            assert facts.registers > 0 and facts.local_bytes == 0 and facts.threads == 128, facts
        # the hooks are removed
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.interpreter import GridExecutor
        assert "record" not in repr(CompiledKernel.run.fget) and GridExecutor.__call__.__name__ == "__call__"
        candidate.run(c.double, x, BLOCK=64)
        assert seen.count == 3
    """)


def test_precompiled_kernels_and_direct_calls_of_run_count_as_launches(script: Script) -> None:
    script("""
        c, out = candidate, torch.zeros_like(x)
        with record_launches(own) as seen:
            c.double.run(x, out, 100, BLOCK=64, grid=(2,), warmup=False)
            if not interpreted:
                compiled = c.double.warmup(x, out, 100, BLOCK=64, grid=(2,))
                compiled = c.double[(2,)](x, out, 100, BLOCK=64)
                compiled[(2, 1, 1)](x, out, 100, 64)
        assert seen.count == (1 if interpreted else 3), seen
        assert torch.equal(out, 2 * x)
    """)


def test_ablation_disables_own_kernels_and_no_others(script: Script) -> None:
    script("""
        c = candidate
        calls = (c.double,), (c.tuned, {}), (c.guided, {}), (library_kernels.foreign,)
        seen, (double, tuned, guided, foreign) = seen_in(Mode.ABLATED, *calls)
        assert seen.count == 3 and not double.any() and not tuned.any() and not guided.any()
        assert torch.equal(foreign, 5 * x)
        assert torch.equal(candidate.run(c.double, x, BLOCK=64), 2 * x)
        try:
            with record_launches(own, Mode.ABLATED):
                raise KeyError
        except KeyError:
            assert torch.equal(candidate.run(c.double, x, BLOCK=64), 2 * x)
    """)


def test_fresh_memory_holds_random_numbers_in_mode_spoiled_and_nan_in_mode_ablated(script: Script) -> None:
    script("""
        def fresh(mode, dtype=torch.float32):
            with record_launches(own, mode) as seen:
                out = torch.empty(100, dtype=dtype, device=device)
                candidate.double[(2,)](x, out, 100, BLOCK=64)
            assert seen.count == 1
            return out
        assert fresh(Mode.ABLATED).isnan().all()
        spoiled = fresh(Mode.SPOILED)
        assert spoiled.isfinite().all() and spoiled.std() > 0.5 and not torch.equal(spoiled, 2 * x)
        assert torch.equal(fresh(Mode.PLAIN), 2 * x)
    """)


def test_mode_undone_replaces_the_results_of_a_kernel_with_its_inputs(script: Script) -> None:
    script("""
        c = candidate
        seen, (double, copy, nothing) = seen_in(Mode.UNDONE, (c.double,), (c.copy,), (c.nothing,))
        assert torch.equal(double, x) and torch.equal(copy, x) and not nothing.any()
        assert (seen.count, seen.moving) == (3, 2)
        with record_launches(own, Mode.UNDONE) as seen:
            here, total = x.clone(), torch.zeros(1, device=device)
            c.double[(2,)](here, here, 100, BLOCK=64)  # in place
            c.total[(1,)](x, total, 100, BLOCK=128)  # no other argument has the size of its result
        assert torch.equal(here, x) and total == 0
        with record_launches(own, Mode.UNDONE):
            far, out = x + 100, torch.empty_like(x)
            c.added[(2,)](far, x, out, 100, BLOCK=64)
        assert torch.equal(out, far), "what is nearest to what it wrote"
        assert torch.equal(candidate.run(c.double, x, BLOCK=64), 2 * x)
    """)


def test_an_audit_tells_moving_data_from_computing(script: Script) -> None:
    script("""
        c = candidate
        def audited(*arguments, kernel, n=100):
            with record_launches(own, Mode.AUDITED) as seen:
                kernel[(2,)](*arguments, n, BLOCK=64)
            (launch,) = seen.launches
            assert seen.moving == launch.only_moves_data
            return launch.only_moves_data, launch.changed
        new = lambda *shape, **named: torch.randn(*(shape or (100,)), device=device, **named)
        assert audited(x, new(), kernel=c.double) == (False, ("out",))
        assert audited(x, new(), kernel=c.copy) == (True, ("out",))
        assert audited(x.view(10, 10).t().contiguous(), new(10, 10), kernel=c.copy) == (True, ("out",))
        assert audited(x, new(dtype=torch.float64), kernel=c.copy) == (True, ("out",)), "a cast"
        assert audited(x, new(), kernel=c.nothing) == (True, ())
        assert audited(x, x.clone(), kernel=c.copy) == (True, ()), "what was there already"
        with record_launches(own, Mode.AUDITED) as seen:
            c.fill[(2,)](new(), 7.0, 100, BLOCK=64)
            c.total[(1,)](x, new(1), 100, BLOCK=128)
        assert [one.only_moves_data for one in seen.launches] == [True, False], "a sum is one number and no fill"
    """)


def test_fresh_memory_does_not_keep_the_result_of_an_earlier_call(script: Script) -> None:
    """The audit once refused an honest pooling kernel: all its outputs are 0.5, and fresh memory held 0.5 already."""
    script("""
        c = candidate
        def outputs():
            for _ in range(20):
                torch.full((100,), 7.0, device=device)
            yield torch.empty(100, device=device)
            yield torch.empty_like(x)
            yield x.new_empty(100)
            yield torch.empty_strided((100,), (1,), device=device)
        with record_launches(own, Mode.AUDITED) as seen:
            for out in outputs():
                c.fill[(2,)](out, 7.0, 100, BLOCK=64)
                assert seen.reaches(out)
                assert torch.equal(out, torch.full_like(out, 7.0))
        assert seen.count == 4
        with record_launches(own, Mode.ABLATED):
            for out in outputs():
                c.fill[(2,)](out, 7.0, 100, BLOCK=64)
                assert not (out == 7.0).any()
        with record_launches(own, Mode.PLAIN):
            assert torch.empty(100, device=device).shape == (100,)
    """)


def test_audit_counts_operators_of_torch_that_compute(script: Script) -> None:
    script("""
        c, square = candidate, torch.randn(10, 10, device=device)
        with record_launches(own, Mode.AUDITED) as seen:
            product = (square @ square.t()).view(100)
            out = torch.empty(100, device=device)
            c.copy[(2,)](product, out, 100, BLOCK=64)
            out = out.clone().view(10, 10).t().contiguous()
        assert (seen.count, seen.moving, seen.library_ops) == (1, 1, 1), seen
        assert seen.launches[0].tensors[0] == "x: float32 [100]"
        with record_launches(own, Mode.AUDITED) as seen:
            out = candidate.run(c.double, x, BLOCK=64)
        assert (seen.count, seen.moving, seen.library_ops) == (1, 0, 0), seen
    """)


def test_own_data_is_followed_through_custom_operators_lists_and_numbers(script: Script) -> None:
    script("""
        c = candidate
        @torch.library.custom_op("kc_attribution::thrice", mutates_args=())
        def thrice(x: torch.Tensor) -> torch.Tensor:
            return candidate.run(c.double, x, BLOCK=64) * 1.5
        @torch.library.custom_op("kc_attribution::scratch", mutates_args={"out"})
        def scratch(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(candidate.run(c.double, x, BLOCK=64) + x)
        @torch.library.custom_op("kc_attribution::without", mutates_args=())
        def without(x: torch.Tensor) -> torch.Tensor:
            return x * 3
        with record_launches(own, Mode.AUDITED) as seen:
            out, to, other = thrice(x), torch.empty_like(x), without(x)
            scratch(x, to)
            assert seen.reaches(out) and seen.reaches(to) and not seen.reaches(other)
        assert seen.count == 2
        with record_launches(own, Mode.AUDITED) as seen:
            made, into = candidate.run(c.double, x, BLOCK=64), [torch.empty_like(x), torch.empty_like(x)]
            torch._foreach_copy_(into[:1], [made])
            torch._foreach_copy_(into[1:], [x])
            assert [seen.reaches(one) for one in into] == [True, False]
        with record_launches(own, Mode.AUDITED) as seen:
            total, flag = torch.empty(1, device=device), torch.empty(2, dtype=torch.bool, device=device)
            c.total[(1,)](x, total, 100, BLOCK=128)
            assert not seen.reaches(x / 3.0)
            bool((total > 0).any())
            assert not seen.reaches(x / 4.0), "a decision is no data"
            assert seen.reaches(x / total.item())
    """)


@pytest.mark.parametrize(
    ("changes", "are_all"),
    [
        ({}, True),
        ({"library_ops": 1}, False),
        ({"library_moves": 1}, False),
        ({"foreign": 1}, False),
        ({"replays": 1}, False),
        ({"count": 3}, False),  # the third launch is a call of an extension's function, which has no name on the device
        ({"count": 0, "by_name": {}}, False),
    ],
)
def test_are_all_is_true_only_if_nothing_else_used_the_device(changes: dict[str, Any], are_all: bool) -> None:
    seen = Launches(Mode.AUDITED, count=2, by_name={"double": 2})
    for name, value in changes.items():
        setattr(seen, name, value)
    assert seen.are_all is are_all


def test_copies_and_fills_of_the_library_are_counted(script: Script) -> None:
    script("""
        with record_launches(own, Mode.AUDITED) as seen:
            torch.empty(3, device=device)
            x.view(10, 10).t()
        assert seen.library_moves == 0
        with record_launches(own, Mode.AUDITED) as seen:
            x.clone()
            torch.ones(3, device=device)
            candidate.run(candidate.double, x, BLOCK=64)
        assert seen.library_moves >= 2 and seen.library_ops == 0 and not seen.are_all
    """)


TRITON_TEXT = "import torch\nimport triton\nclass ModelNew(torch.nn.Module): pass"


@pytest.mark.parametrize(
    ("backend", "source", "text", "audit", "needs_profile"),
    [
        ("triton", TRITON_TEXT, ONLY_OWN, Audit(1, 0, 0, 0, 1, 0, 0), False),
        ("triton", TRITON_TEXT, "double: 20 registers", Audit(1, 0, 0, 0, 1, 0, 0), True),
        ("cuda", TRITON_TEXT, ONLY_OWN, Audit(1, 0, 0, 0, 1, 0, 0), True),
        ("triton", TRITON_TEXT + "\nf = torch.compile(torch.relu)", ONLY_OWN, Audit(1, 0, 0, 0, 1, 0, 0), True),
        ("triton", TRITON_TEXT + "\nf = torch.jit.script(g)", ONLY_OWN, Audit(1, 0, 0, 0, 1, 0, 0), True),
        ("triton", TRITON_TEXT + "\nf = torch.autograd.grad", ONLY_OWN, Audit(1, 0, 0, 0, 1, 0, 0), True),
        ("triton", "import ctypes\n" + TRITON_TEXT, ONLY_OWN, Audit(1, 0, 0, 0, 1, 0, 0), True),
        ("triton", TRITON_TEXT, ONLY_OWN, Audit(1, 0, 1, 0, 1, 0, 9), True),
        ("triton", TRITON_TEXT, ONLY_OWN, Audit(1, 0, 0, 0, 1, 1, 0), True),
    ],
)
def test_a_candidate_is_profiled_unless_only_its_own_kernels_were_seen(
    backend: str, source: str, text: str, audit: Audit, needs_profile: bool
) -> None:
    proof = WorkProof.__new__(WorkProof)
    proof.backend, proof.checker = backend, SimpleNamespace(source=source, audits=[audit])  # type: ignore[assignment]
    assert proof._launches_only_own_kernels(f"other\n{text}") is not needs_profile


def test_only_functions_from_the_candidates_file_are_its_own(script: Script) -> None:
    script("""
        c = candidate
        for function in (c.double, c.tuned, c.guided, c.grid, c.from_text):
            assert own.owns(function), function
        import triton
        for function in (library_kernels.foreign, triton.cdiv, torch.relu, len, 3, triton.language.sum):
            assert not own.owns(function), function
        borrowed = triton.jit(library_kernels.foreign.fn)  # still the library's, although decorated again
        assert not own.owns(borrowed)
        with record_launches(own) as seen:
            candidate.run(borrowed, x, BLOCK=64)
            try:
                with record_launches(own):
                    pass
            except RuntimeError as error:
                print(error)
        assert (seen.count, seen.foreign) == (0, 1)
    """)


@pytest.mark.gpu
def test_share_of_own_kernels_is_computed_from_a_real_profile(script: Script) -> None:
    out = script("""
        big = torch.randn(2048, 2048, device=device)
        def call():
            return candidate.run(candidate.double, big @ big, BLOCK=64)
        call()
        torch.cuda.synchronize()
        with record_launches(own, Mode.PROFILED) as seen:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                with torch.profiler.record_function("double"):  # a range of that name is no kernel
                    call()
                    torch.cuda.synchronize()
        records = device_records(profile)
        for record in records:
            print(record)
        time = kernel_share(records, own.kernel_names(), seen.by_name)
        assert time.own_records == 1 and 0 < time.share < 1, time
        print(time, time.share)
        # a name that a kernel of the library has, too
        vendor = next(record.name for record in records if record.is_kernel and record.name != "double")
        try:
            kernel_share(records, {"double", vendor}, {**seen.by_name, vendor: 0})
        except NoDeviceTime as error:
            print(error)
        else:
            raise AssertionError("a borrowed name passed")
    """)
    print(f"\n{out}")


@pytest.mark.gpu
def test_replays_of_graphs_are_counted_and_skipped_in_an_ablation(script: Script) -> None:
    script("""
        out = torch.zeros_like(x)
        candidate.double[(2,)](x, out, 100, BLOCK=64)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with record_launches(own) as seen, torch.cuda.graph(graph):
            candidate.double[(2,)](x, out, 100, BLOCK=64)
        assert seen.count == 1
        for mode, expected in ((Mode.ABLATED, 0 * x), (Mode.PLAIN, 2 * x)):
            out.zero_()
            with record_launches(own, mode) as seen:
                graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, expected) and (seen.count, seen.replays) == (0, 1)
        graph.replay()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            graph.replay()
            torch.cuda.synchronize()
        assert kernel_share(device_records(profile), own.kernel_names()).share == 1.0
    """)


class _Compiled:
    """The parts of a compiled kernel that the hook needs. The kernel is for a device that is not here."""

    def __init__(self, function: Any) -> None:
        from triton.compiler.compiler import CompiledKernel

        self.launched: list[tuple[Any, ...]] = []
        self.kernel = object.__new__(CompiledKernel)
        self.kernel.src = SimpleNamespace(fn=SimpleNamespace(fn=function, arg_names=["x", "out"], __name__="shift"))
        self.kernel.name, self.kernel.hash, self.kernel.module = "shift_0d1d", "ab" * 32, None
        self.kernel.metadata = SimpleNamespace(shared=64, num_warps=4, target=SimpleNamespace(warp_size=32))
        self.kernel.n_regs, self.kernel.n_spills = 24, 2
        self.kernel._run = self.kernel.function = None
        self.kernel._init_handles = self._load  # type: ignore[method-assign]

    def _load(self) -> None:
        self.kernel.function, self.kernel._run = "function", self._launch

    def _launch(self, *arguments: Any) -> None:
        self.launched.append(arguments)
        x, out = arguments[9:]
        out.copy_(x + 1)


@pytest.mark.cpu
def test_launches_through_the_launcher_of_a_compiled_kernel_are_recorded(tmp_path: Path) -> None:
    def shift(x: Any, out: Any) -> None: ...

    own, x, out = OwnKernels(__file__), torch.randn(8), torch.zeros(8)
    mine, theirs = _Compiled(shift), _Compiled(torch.nn.functional.softmax)
    common = (2, 1, 1, "stream", "function", "packed", "metadata", None, None)

    def start(kernel: Any) -> None:  # as Triton does: `kernel.run` is read before `kernel.function`
        kernel.run(2, 1, 1, "stream", kernel.function, "packed", "metadata", None, None, x, out)

    with record_launches(own, Mode.AUDITED) as seen:
        start(mine.kernel)
        start(theirs.kernel)
    assert mine.launched == [(*common, x, out)] == theirs.launched
    assert (seen.count, seen.foreign, seen.by_name) == (1, 1, {"shift_0d1d": 1})
    (launch,) = seen.launches
    assert (launch.kernel, launch.grid, launch.hash) == ("shift", (2, 1, 1), "ab" * 32)
    assert (launch.changed, launch.only_moves_data) == (("out",), False)
    assert seen.facts["shift_0d1d"] == KernelFacts("shift_0d1d", 24, 8, 64, 128)
    assert own.kernel_names() == {"shift_0d1d"}
    with record_launches(own, Mode.ABLATED) as seen:
        start(mine.kernel)
    assert len(mine.launched) == seen.count == 1


# ---- extensions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def extension() -> tuple[OwnKernels, ModuleType]:
    """Return a module as a candidate would build it. `gelu` is a built-in function, as functions of pybind11 are."""
    own, module = OwnKernels("candidate.py"), ModuleType("extension")
    module.gelu = torch._C._nn.gelu  # type: ignore[attr-defined]
    module.copy = lambda x: x.clone()  # type: ignore[attr-defined]
    module.same = lambda x: x  # type: ignore[attr-defined]
    module.fill = lambda x: torch.full_like(x, 3)  # type: ignore[attr-defined]
    module.add_in_place = _add_in_place  # type: ignore[attr-defined]
    module.many = lambda x: {"a": [native(x), 1.5], "b": (7, True, x.long())}  # type: ignore[attr-defined]
    module.mean = lambda x: (float(x.numpy().mean()), True)  # type: ignore[attr-defined]
    module.version = "text"  # type: ignore[attr-defined]
    module.inner = ModuleType("extension.inner")  # type: ignore[attr-defined]
    module.inner.native = native  # type: ignore[attr-defined]
    module.other = ModuleType("other")  # type: ignore[attr-defined]
    module.other.native = native  # type: ignore[attr-defined]
    module.Model = type("Model", (), {"forward": lambda self, x: native(x), "__len__": lambda self: 3})  # type: ignore[attr-defined]
    own.watch_module(module)
    return own, module


def native(x: Tensor) -> Tensor:
    """Stand for the candidate's own C++ code, which computes without operators of torch."""
    out = torch.empty_like(x)
    out.numpy()[:] = 2 * x.numpy() + 1
    return out


def _add_in_place(x: Tensor, out: Tensor) -> None:
    out.numpy()[:] += x.numpy()


def test_calls_of_extension_functions_count_as_launches(extension: tuple[OwnKernels, ModuleType]) -> None:
    own, module = extension
    x = torch.randn(4, 5)
    assert torch.equal(module.gelu(x), torch.nn.functional.gelu(x))
    with record_launches(own) as seen:
        assert torch.equal(module.gelu(x), torch.nn.functional.gelu(x))
        assert torch.equal(module.Model().forward(x), native(x))
        assert len(module.Model()) == 3
    assert [(one.kernel, one.tensors) for one in seen.launches] == [
        ("gelu", ("0: float32 [4, 5]",)),
        ("Model.forward", ("1: float32 [4, 5]",)),
    ]
    assert module.version == "text"


def test_submodules_of_an_extension_are_own_and_other_modules_in_it_are_not(
    extension: tuple[OwnKernels, ModuleType],
) -> None:
    own, module = extension
    with record_launches(own) as seen:
        module.inner.native(torch.ones(3))
        module.other.native(torch.ones(3))
    assert [one.kernel for one in seen.launches] == ["native"]


def test_number_that_an_extension_returns_counts_as_own_data(extension: tuple[OwnKernels, ModuleType]) -> None:
    own, module = extension
    x = torch.randn(30)
    with record_launches(own, Mode.AUDITED) as seen:
        assert not seen.reaches(x / 3.0)
        divided = x / module.mean(x)[0]
        assert seen.reaches(divided)
    assert (seen.count, seen.moving) == (1, 0)


def test_an_ablation_spoils_what_an_extension_returns_or_changes(extension: tuple[OwnKernels, ModuleType]) -> None:
    own, module = extension
    x, out, kept = torch.randn(6), torch.ones(6), torch.randn(6)
    before = x.clone()
    with record_launches(own, Mode.ABLATED):
        assert module.gelu(x).isnan().all()
        assert module.add_in_place(kept, out) is None
        assert out.isnan().all()
        assert module.same(x).isnan().all()
        many = module.many(x)
        assert many["a"][0].isnan().all()
        assert many["a"][1] != many["a"][1]
        assert many["b"][:2] == (-8, True)
        assert not (many["b"][2] == x.long()).any()
        assert module.Model().forward(x).isnan().all()
    assert torch.equal(x, before), "what came in and was not changed stays as it was"
    with record_launches(own, Mode.UNDONE) as seen:
        assert torch.equal(module.gelu(x), x)
        assert torch.equal(module.same(x), x)
    assert (seen.count, seen.moving) == (2, 1)
    with record_launches(own, Mode.SPOILED):
        spoiled = module.gelu(x)
    assert spoiled.isfinite().all()
    assert not torch.allclose(spoiled, torch.nn.functional.gelu(x))


def test_an_audit_of_an_extension_sees_copies_fills_and_results_of_the_library(
    extension: tuple[OwnKernels, ModuleType],
) -> None:
    own, module = extension
    x, out = torch.randn(30), torch.ones(30)

    def moves(function: Callable[..., Any], *arguments: Tensor) -> tuple[bool | None, int]:
        with record_launches(own, Mode.AUDITED) as seen:
            function(*arguments)
        return seen.launches[0].only_moves_data, seen.library_ops

    assert moves(module.copy, x) == (True, 0)
    assert moves(module.fill, x) == (True, 0)
    assert moves(module.same, x) == (True, 0)
    assert moves(module.gelu, x) == (True, 1), "C++ that calls the library only"
    assert moves(module.add_in_place, x, out) == (False, 0)
    assert moves(module.Model().forward, x) == (False, 0)


def test_modules_that_the_candidate_builds_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    def load_inline(name: str, **_: object) -> ModuleType:
        module = ModuleType(name)
        module.__file__ = str(tmp_path / "built.so")
        module.forward = torch._C._nn.gelu  # type: ignore[attr-defined]
        return module

    (tmp_path / "built.so").write_bytes(b"\x7fELF, but no more")
    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    own = OwnKernels("candidate.py")
    with own.watch_extensions():
        module = cpp_extension.load_inline(name="mine", cpp_sources="")
    assert cpp_extension.load_inline is load_inline
    with record_launches(own) as seen:
        module.forward(torch.ones(3))
    assert seen.count == 1
    assert own.libraries == [str(tmp_path / "built.so")]
    assert own.kernel_names() == frozenset()


#: Registers an operator; only a part of torch's headers, so that it compiles in seconds.
OPERATOR = """
#include <torch/library.h>
#include <ATen/core/Tensor.h>
at::Tensor thrice(const at::Tensor& x) {
  at::Tensor out = x.clone();
  float* values = out.data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) values[i] *= 3;
  return out;
}
TORCH_LIBRARY(kc_attribution_test, m) {
  m.def("thrice(Tensor x) -> Tensor");
  m.def("thrice_composite", &thrice);
}
TORCH_LIBRARY_IMPL(kc_attribution_test, CPU, m) { m.impl("thrice", &thrice); }
"""


@pytest.mark.slow
def test_operators_that_a_built_library_registers_are_the_candidates_own(tmp_path: Path) -> None:
    from torch.utils import cpp_extension

    (tmp_path / "operator.cpp").write_text(OPERATOR)
    own, x = OwnKernels("candidate.py"), torch.randn(5, 5)
    with own.watch_extensions():
        cpp_extension.load(
            "kc_thrice", [str(tmp_path / "operator.cpp")], is_python_module=False, build_directory=str(tmp_path)
        )
    plain, composite = torch.ops.kc_attribution_test.thrice, torch.ops.kc_attribution_test.thrice_composite
    assert own.operators == {"kc_attribution_test::thrice", "kc_attribution_test::thrice_composite"}
    assert [Path(library).name for library in own.libraries] == ["kc_thrice.so"]
    for thrice in (plain, plain.default, composite, composite.default):
        with record_launches(own) as seen:
            assert torch.equal(thrice(x), 3 * x)
        assert seen.count == 1
        with record_launches(own, Mode.ABLATED) as seen:
            assert thrice(x).isnan().all()
        with record_launches(own, Mode.AUDITED) as seen:
            thrice(x)
        assert [(one.changed, one.only_moves_data) for one in seen.launches] == [(("result",), False)]
    assert kernels_in(own.libraries[0]) == frozenset()


# ---- contents --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 300), st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.complex64]), st.data())
@settings(max_examples=60, deadline=None)
def test_fingerprint_depends_on_contents_and_not_on_layout(size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    x = torch.randint(0, 9, (size,)).to(dtype)
    assert fingerprint(x) == fingerprint(x.clone()) == fingerprint(torch.stack([x, x], 1)[:, 0])
    assert fingerprint(torch.cat([x[:0], x])) == fingerprint(x.view(1, -1, 1))
    if size:
        at = data.draw(st.integers(0, size - 1))
        y = x.clone()
        y[at] += 1
        assert fingerprint(y) != fingerprint(x)
        assert fingerprint(x[:-1]) != fingerprint(x)


def test_fingerprint_depends_on_the_order_of_elements(device: str) -> None:
    x = torch.arange(1 << 12, dtype=torch.float32, device=device)
    assert fingerprint(x) != fingerprint(x.flip(0))
    assert fingerprint(x) != fingerprint(x.roll(1))
    assert fingerprint(x) == fingerprint(x.cpu())
    assert fingerprint(x[1:]) == fingerprint(x[1:].clone())


def test_fingerprint_does_not_depend_on_the_size_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(0, 255, (1000,), dtype=torch.uint8)
    whole = fingerprint(x)
    monkeypatch.setattr(contents, "CHUNK_WORDS", 7)
    assert fingerprint(x) == whole


def test_tensor_of_one_repeated_value_is_recognised() -> None:
    for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex128):
        assert is_one_value(torch.ones(3, 4).to(dtype))
        assert not is_one_value(torch.eye(3).to(dtype))
    assert is_one_value(torch.ones(1).expand(5))
    assert is_one_value(torch.ones(0))


# ---- device time -----------------------------------------------------------------------------------------------------

GEMM = KernelRecord("sm90_xmma_gemm_f32f32", 0, 600)
COPY = KernelRecord("Memcpy DtoD (Device -> Device)", 700, 100, is_kernel=False)


def test_share_of_device_time_counts_exact_kernel_names_only() -> None:
    names = ["fused_add", "fused_add_kernel", "my_fused_add", "fused_add "]
    records = [KernelRecord(name, 0, 100) for name in names]
    found = kernel_share([*records, GEMM], ["fused_add"])
    assert (found.own_ns, found.all_ns, found.own_records, found.records, found.share) == (100, 1000, 1, 5, 0.1)
    assert kernel_share(records, []).share == 0.0


def test_copies_and_fills_never_count_as_own_kernels() -> None:
    assert kernel_share([COPY, KernelRecord("mine", 0, 100)], ["mine", COPY.name]).share == 0.5


def test_cpp_kernel_is_own_under_its_demangled_and_its_mangled_name() -> None:
    (mangled, plain) = spellings("_ZN2ns4tmplIfLi2EEEvPT_")
    assert plain == "void ns::tmpl<float, 2>(float*)"
    records = [
        KernelRecord(plain, 0, 50),
        KernelRecord(mangled, 0, 50),
        KernelRecord("void ns::tmpl<float, 3>(float*)", 0, 100),
    ]
    assert kernel_share(records, spellings("_ZN2ns4tmplIfLi2EEEvPT_")).share == 0.5


@pytest.mark.parametrize(
    ("records", "launched", "message"),
    [
        ([], None, "recorded nothing"),
        ([KernelRecord("mine", 0, 0)], None, "recorded nothing"),
        ([KernelRecord("mine", 0, -5)], None, "negative duration"),
        ([KernelRecord("mine", 0, 5)] * 2, {"mine": 1}, "mine was recorded 2 times and launched 1 times"),
    ],
)
def test_without_trustworthy_records_there_is_no_share(
    records: list[KernelRecord], launched: dict[str, int] | None, message: str
) -> None:
    with pytest.raises(NoDeviceTime, match=message):
        kernel_share(records, ["mine"], launched)


def test_device_records_leave_out_ranges_and_host_events() -> None:
    def event(name: str, device: str, start: float, length: float, annotation: bool = False) -> SimpleNamespace:
        times = SimpleNamespace(start=start, elapsed_us=lambda: length)
        return SimpleNamespace(
            name=name, device_type=SimpleNamespace(name=device), time_range=times, is_user_annotation=annotation
        )

    events = [
        event("aten::mm", "CPU", 0, 50),
        event("gemm", "CUDA", 1.5, 2.25),
        event("gemm", "CUDA", 0, 9, annotation=True),
        event("Memset (Device)", "CUDA", 4, 1),
    ]
    records = device_records(SimpleNamespace(events=lambda: events))
    assert records == [KernelRecord("gemm", 1500, 2250), KernelRecord("Memset (Device)", 4000, 1000, False)]


def test_a_real_profile_of_the_cpu_has_no_device_records() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(3) + 1
    assert device_records(profile) == []


# ---- facts about compiled kernels ------------------------------------------------------------------------------------


def test_kernel_facts_are_formatted_in_one_line() -> None:
    assert str(KernelFacts("_Z3addPf")) == "add(float*): nothing is known"
    assert (
        str(KernelFacts("k", registers=24, local_bytes=0, shared_bytes=0))
        == "k: 24 registers, 0 bytes of shared memory"
    )


def test_a_library_of_host_code_has_no_kernels() -> None:
    from kernel_coder import _C

    assert kernels_in(_C.__file__) == frozenset()


def test_name_that_cannot_be_demangled_stays_unchanged() -> None:
    assert demangled("_Znonsense") == "_Znonsense"
    assert demangled("triton_poi_fused_0") == "triton_poi_fused_0"


KERNELS = """
__global__ void add(float* a, int n) { a[threadIdx.x] += n; }
static __global__ void hidden(int* a) { a[0] = 1; }
namespace { __global__ void unnamed(int* a) { a[0] = 2; } }
namespace ns { template <typename T, int N> __global__ void filled(T* a) { a[threadIdx.x] = T(N); } }
extern "C" __global__ void plain(float* x) { x[0] = 3; }
void launch(float* p, int* q) {
  add<<<1, 32>>>(p, 3); hidden<<<1, 1>>>(q); unnamed<<<1, 1>>>(q);
  ns::filled<float, 2><<<1, 4>>>(p); plain<<<1, 1>>>(p);
}
"""


@pytest.fixture(scope="module")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    if shutil.which("nvcc") is None:
        pytest.skip("this machine has no nvcc")
    directory = tmp_path_factory.mktemp("kernels")
    (directory / "kernels.cu").write_text(KERNELS)
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=sm_80", "kernels.cu", "-o", "kernels.so"]
    subprocess.run(command, cwd=directory, check=True)
    return directory / "kernels.so"


@pytest.mark.parametrize("with_cuobjdump", [True, False])
def test_the_kernels_of_a_library_are_found_by_name(
    cuda_library: Path, with_cuobjdump: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernel_coder.judge.runner import kernel_facts

    if not with_cuobjdump:
        monkeypatch.setattr(kernel_facts, "_cuobjdump", lambda: None)
    names = {demangled(name) for name in kernels_in(str(cuda_library))}
    assert names == {
        "add(float*, int)",
        "hidden(int*)",
        "(anonymous namespace)::unnamed(int*)",
        "void ns::filled<float, 2>(float*)",
        "plain",
    }


def test_resources_of_a_librarys_kernels_are_known_if_cuobjdump_is_installed(cuda_library: Path) -> None:
    from kernel_coder.judge.runner import kernel_facts

    facts = {fact.name: fact for fact in library_facts(str(cuda_library))}
    if kernel_facts._cuobjdump() is None:
        assert facts == {}
    else:
        assert (facts["plain"].registers or 0) > 0
        assert facts["plain"].local_bytes == facts["plain"].shared_bytes == 0


@pytest.mark.parametrize("has_module", [True, False])
def test_write_to_a_tensor_that_the_module_keeps_is_recorded_only_if_the_module_is_known(has_module: bool) -> None:
    module = torch.nn.Module()
    module.kept = [torch.zeros(4)]

    def write(x: torch.Tensor) -> None:  # stands for a function in C++ that got the address in an earlier call
        module.kept[0].copy_(2 * x)

    recorder = Recorder(OwnKernels("candidate.py"), Mode.AUDITED, module=module if has_module else None)
    recorder.call_function("write", write, (torch.ones(4),), {})
    (launch,) = recorder.seen.launches
    assert list(launch.changed) == (["self.kept[0]"] if has_module else [])
