"""For users of KernelBench: its evaluation function and its metrics, served by our judge.

:func:`eval_kernel_against_ref` has the parameters of KernelBench's function of that name and returns its
``KernelExecResult`` (read at commit 423217d of 5 March 2026), so that a script changes one import::

    from kernel_coder.judge.kernelbench import eval_kernel_against_ref, KernelExecResult

or none: ``python -m kernel_coder.judge.kernelbench scripts/run_and_check.py ...`` runs a script with KernelBench's
function replaced, and ``pytest -p kernel_coder.judge.kernelbench`` their tests. Processes that a script starts by
``spawn`` import KernelBench anew, and with it the original; there the import has to change.

What differs is what the judge is for: the candidate runs in a process and a sandbox of its own, seeds are secret, every
call has other inputs, each timed call is checked, and tolerances follow the error of the reference itself.
"""

from __future__ import annotations

import json
import math
import multiprocessing.util
import os
import re
import runpy
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import BaseModel

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks import Task
from kernel_coder.tasks.task import BACKENDS

if TYPE_CHECKING:
    from kernel_coder.judge.supervisor.judge import Judge

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

TIMING_METHODS = ("cuda_event", "do_bench", "do_bench_impl", "host_time", "nsight_python_time")
"""KernelBench's names. The judge has one method: its own clock, around calls in another process."""

OPEN_JUDGES = 4
"""Of different settings in one process; the one that was used longest ago is closed for another."""


class KernelExecResult(BaseModel):
    """KernelBench's result. Times are milliseconds, and -1 where nothing was measured."""

    compiled: bool = False
    correctness: bool = False
    metadata: dict[str, Any] = {}
    runtime: float = -1.0
    runtime_stats: dict[str, Any] = {}
    ref_runtime: float = -1.0
    ref_runtime_stats: dict[str, Any] = {}


def eval_kernel_against_ref(
    original_model_src: str,
    custom_model_src: str,
    seed_num: int = 42,
    num_correct_trials: int = 1,
    num_perf_trials: int = 10,
    measure_performance: bool = False,
    timing_method: str = "cuda_event",
    verbose: bool = False,
    build_dir: str | os.PathLike[str] | None = None,
    device: torch.device | int | str | None = None,
    backend: str = "cuda",
    precision: torch.dtype = torch.float32,
    check_for_excessive_speedup: bool = True,
    excessive_speedup_threshold: float = 10,
    judge_config: JudgeConfig | None = None,
) -> KernelExecResult | None:
    """Judges ``custom_model_src`` (with ``ModelNew``) against ``original_model_src`` (with ``Model``).

    Args:
        original_model_src: the reference, as a file of KernelBench has it. It is trusted.
        custom_model_src: the candidate. It is not.
        seed_num: not used: a seed that the candidate can know is none. The seeds drawn are in the verdict.
        num_correct_trials: calls that are compared; from five on every family of inputs is among them.
        num_perf_trials: calls that are timed.
        measure_performance: time them.
        timing_method: checked to be one of KernelBench's, not used.
        verbose: print the verdict.
        build_dir: not used; the candidate builds in its sandbox.
        device: default: the current GPU, or the CPU where there is none.
        backend: ``triton``, ``cuda``, ``cpp`` or ``torch``.
        precision: ``torch.float32``, ``torch.float16`` or ``torch.bfloat16``.
        check_for_excessive_speedup: set ``metadata["excessive_speedup"]`` for a speedup that is not to be believed: one
            above the threshold, and whatever a rejected candidate claims.
        excessive_speedup_threshold: times faster.
        judge_config: everything else about the judge; not among KernelBench's parameters.

    Returns:
        The result. All of its ``metadata`` can be written as JSON: ``hardware``, ``device``; of a correct candidate
        ``correctness_trials``; of others ``compilation_error`` or ``runtime_error``, each with ``_name`` and the second
        with ``_traceback``, or ``correctness_issue`` with ``max_difference`` (a list, a number for each output), or
        ``rejected`` with the reason; ``excessive_speedup``; and beyond KernelBench's keys ``outcome``, ``speedup`` with
        ``speedup_low`` and ``speedup_high``, ``kernel_share``, ``feedback`` and the whole ``verdict``.

        None where the judge itself failed, as KernelBench's function returns None for "try again": it says nothing
        about the candidate.

    Raises:
        ValueError: an unknown backend, precision, timing method or device, a number of trials below 1, or a reference
            against which nothing can be judged; the message says why.
    """
    if backend.lower() not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if timing_method not in TIMING_METHODS:
        raise ValueError(f"timing_method must be one of {', '.join(TIMING_METHODS)}; got {timing_method!r}")
    if precision not in PRECISIONS.values():
        raise ValueError(f"precision must be one of {', '.join(map(str, PRECISIONS.values()))}; got {precision}")
    if num_correct_trials < 1 or num_perf_trials < 1:
        raise ValueError(
            f"num_correct_trials and num_perf_trials must be at least 1; got {num_correct_trials}, {num_perf_trials}"
        )
    wanted = {"checks": num_correct_trials, "timed_calls": num_perf_trials, "timing": measure_performance}
    base = (judge_config or JudgeConfig()).model_dump()
    config = JudgeConfig.model_validate({**base, **wanted, "hidden_shapes": False})
    place = device_name(device)
    if backend.lower() == "cuda" and place == "cpu":
        raise ValueError("backend cuda needs a GPU; triton, cpp and torch can be judged on the CPU")
    task = Task(
        id="reference",
        source="KernelBench",
        reference=original_model_src,
        backend=backend.lower(),
        precision=next(name for name, dtype in PRECISIONS.items() if dtype == precision),
    )
    verdict = cached_judge(place, task.backend, config).evaluate(task, custom_model_src, backend=task.backend)
    if not verdict.is_scored and (verdict.reason or "").startswith("the task is refused"):
        raise ValueError(f"original_model_src cannot be judged against: {verdict.reason}")
    if verbose:
        print(f"[Eval] {verdict.outcome}: {verdict.reason or 'matches the reference'}")
    return result_of(verdict, place, config, excessive_speedup_threshold if check_for_excessive_speedup else math.inf)


def result_of(
    verdict: Verdict, device: str, config: JudgeConfig, excessive_speedup_threshold: float = math.inf
) -> KernelExecResult | None:
    """A verdict in KernelBench's terms; None for the harness's own failure.

    >>> from kernel_coder.judge import example_verdict
    >>> result = result_of(example_verdict("wrong_output"), "cuda:0", JudgeConfig())
    >>> result.compiled, result.correctness, result.metadata["correctness_issue"]
    (True, False, 'an example of wrong_output')
    """
    if not verdict.is_scored:
        return None
    metadata: dict[str, Any] = {"hardware": verdict.device, "device": device, "outcome": verdict.outcome.value}
    reason = verdict.reason or ""
    if verdict.correct:
        metadata["correctness_trials"] = f"({config.checks} / {config.checks})"
    elif verdict.outcome is Outcome.WRONG_OUTPUT:
        metadata |= {"correctness_issue": reason, "correctness_issue_name": "correctness_issue"}
        if verdict.errors:
            metadata["max_difference"] = [f"{error.max_abs_error:.6f}" for error in verdict.errors]
    elif verdict.outcome is Outcome.REJECTED:
        metadata["rejected"] = reason
    elif verdict.compiled:
        metadata |= {"runtime_error": reason, "runtime_error_name": error_name(verdict)}
        metadata["runtime_error_traceback"] = verdict.feedback
    else:
        metadata |= {"compilation_error": verdict.feedback or reason, "compilation_error_name": error_name(verdict)}
    excessive = verdict.speedup is not None and verdict.speedup > excessive_speedup_threshold
    claimed = verdict.outcome is Outcome.REJECTED and config.timing and math.isfinite(excessive_speedup_threshold)
    if excessive or claimed:
        metadata["excessive_speedup"] = True
    for name in ("speedup", "speedup_low", "speedup_high", "kernel_share", "feedback"):
        metadata[name] = getattr(verdict, name)
    metadata["verdict"] = json.loads(verdict.to_json())
    times = get_timing_stats(verdict.runtimes_ms, device, verdict.device)
    reference_times = get_timing_stats(verdict.reference_runtimes_ms, device, verdict.device)
    timed = verdict.correct and config.timing
    return KernelExecResult(
        compiled=verdict.compiled,
        correctness=verdict.correct,
        metadata=metadata,
        runtime=times["mean"] if timed and times else -1.0,
        runtime_stats=times if timed else {},
        ref_runtime=reference_times["mean"] if timed and reference_times else -1.0,
        ref_runtime_stats=reference_times if timed else {},
    )


def error_name(verdict: Verdict) -> str:
    """The exception's class where one is named, else the outcome.

    >>> from kernel_coder.judge import example_verdict
    >>> error_name(example_verdict("runtime_error", feedback="torch.OutOfMemoryError: no"))
    'torch.OutOfMemoryError'
    >>> error_name(example_verdict("timeout"))
    'timeout'
    """
    for text in (verdict.reason or "", verdict.feedback):
        if found := re.search(r"\b([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))\b", text):
            return found[1]
    return verdict.outcome.value


def device_name(device: torch.device | int | str | None) -> str:
    """The judge's name of KernelBench's device.

    >>> device_name("cpu"), device_name(torch.device("cpu"))
    ('cpu', 'cpu')
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # asking would put a context there
    if device is None:
        return f"cuda:{current}" if gpus else "cpu"
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type == "cpu":
        return "cpu"
    if place.type != "cuda" or (place.index or 0) >= gpus:
        raise ValueError(f"device must be cpu or one of the {gpus} GPUs that torch sees; got {device}")
    return f"cuda:{current if place.index is None else place.index}"


# ---- judges that stay open -----------------------------------------------------------------------------------------

_judges: OrderedDict[tuple[int, str, str, JudgeConfig], Judge] = OrderedDict()
_lock = threading.Lock()


def cached_judge(device: str, backend: str, config: JudgeConfig) -> Judge:
    """The judge of these settings in this process; started at the first call and closed when the process ends."""
    from kernel_coder.judge.supervisor.judge import Judge

    key = (os.getpid(), device, backend, config)
    with _lock:
        if key in _judges:
            _judges.move_to_end(key)
            return _judges[key]
        for other in [other for other in _judges if other[0] != key[0]]:
            del _judges[other]  # of the process that this one was forked from, which closes it
        while len(_judges) >= OPEN_JUDGES:
            _judges.popitem(last=False)[1].__exit__(None, None, None)
        judge = Judge(device=device, backend=backend, config=config).__enter__()
        if not _judges:
            # atexit alone does not run in the workers of multiprocessing.
            multiprocessing.util.Finalize(None, close_judges, exitpriority=100)
        _judges[key] = judge
        return judge


def close_judges() -> None:
    """Closes the judges that this process opened."""
    with _lock:
        for (process, *_), judge in list(_judges.items()):
            if process == os.getpid():
                judge.__exit__(None, None, None)
        _judges.clear()


# ---- what KernelBench's scripts use beside it ----------------------------------------------------------------------


def get_timing_stats(elapsed_times: Sequence[float], device: Any = None, hardware: str | None = None) -> dict[str, Any]:
    """Mean, standard deviation, extremes (milliseconds, three digits) and number of the times; empty for none.

    >>> get_timing_stats([1.0, 2.0])
    {'mean': 1.5, 'std': 0.5, 'min': 1.0, 'max': 2.0, 'num_trials': 2}
    """
    if not len(elapsed_times):
        return {}
    times = np.asarray(elapsed_times, dtype=np.float64)
    found = {"mean": times.mean(), "std": times.std(), "min": times.min(), "max": times.max()}
    stats: dict[str, Any] = {name: float(f"{value:.3g}") for name, value in found.items()}
    stats["num_trials"] = len(times)
    if device is not None:
        on_gpu = torch.device(device).type == "cuda"
        stats["hardware"] = hardware or (torch.cuda.get_device_name(device) if on_gpu else "cpu")
        stats["device"] = str(device)
    return stats


def get_error_name(error: Exception) -> str:
    """
    >>> get_error_name(ValueError())
    'builtins.ValueError'
    """
    return f"{type(error).__module__}.{type(error).__name__}"


def get_torch_dtype_from_string(precision: str) -> torch.dtype:
    """
    >>> get_torch_dtype_from_string("bf16")
    torch.bfloat16
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    return PRECISIONS[precision]


def check_metadata_serializable_all_types(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata with everything that JSON does not know as text. Ours can be written as it is."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

    found: dict[str, Any] = plain(metadata)
    return found


def fastp(is_correct: ArrayLike, baseline_speed: ArrayLike, actual_speed: ArrayLike, n: int, p: float) -> float:
    """The share of n candidates that are correct and more than p times faster than the baseline.

    >>> fastp([1, 0, 1], [2.0, 9.0, 1.0], [1.0, 1.0, 1.0], 4, 1.0)
    0.25
    """
    return float((_speedups(is_correct, baseline_speed, actual_speed) > p).sum() / n) if n > 0 else 0.0


def geometric_mean_speed_ratio_correct_only(
    is_correct: ArrayLike, baseline_speed: ArrayLike, actual_speed: ArrayLike, n: int
) -> float:
    """Geometric mean of the speedups of correct candidates; 0 where there are none. ``n`` is not used.

    >>> round(geometric_mean_speed_ratio_correct_only([1, 1, 0], [4.0, 1.0, 9.0], [1.0, 1.0, 1.0], 3), 9)
    2.0
    """
    return _geometric_mean(_speedups(is_correct, baseline_speed, actual_speed))


def geometric_mean_speed_ratio_correct_and_faster_only(
    is_correct: ArrayLike, baseline_speed: ArrayLike, actual_speed: ArrayLike, n: int
) -> float:
    """The same of those that are faster than the baseline.

    >>> round(geometric_mean_speed_ratio_correct_and_faster_only([1, 1], [4.0, 1.0], [1.0, 2.0], 2), 9)
    4.0
    """
    speedups = _speedups(is_correct, baseline_speed, actual_speed)
    return _geometric_mean(speedups[speedups > 1])


def _speedups(is_correct: ArrayLike, baseline: ArrayLike, actual: ArrayLike) -> np.ndarray:
    correct = np.asarray(is_correct, dtype=bool)
    return np.asarray(baseline, dtype=np.float64)[correct] / np.asarray(actual, dtype=np.float64)[correct]


def _geometric_mean(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean())) if values.size else 0.0  # logarithms: a product of many overflows


# ---- their scripts and tests, unchanged ----------------------------------------------------------------------------


def install() -> None:
    """Puts our evaluation in the place of KernelBench's, in this process: ``kernelbench.eval`` must be importable."""
    import kernelbench.eval as theirs

    theirs.eval_kernel_against_ref = eval_kernel_against_ref
    theirs.KernelExecResult = KernelExecResult


def pytest_configure(config: object) -> None:
    """``pytest -p kernel_coder.judge.kernelbench``: before their tests import what they test."""
    install()


def main(arguments: Sequence[str]) -> int:
    """Runs a script of KernelBench's with our evaluation."""
    if not arguments or not Path(arguments[0]).is_file():
        print("usage: python -m kernel_coder.judge.kernelbench SCRIPT.py ...", file=sys.stderr)
        return 2
    from kernel_coder.judge import kernelbench  # not this file as __main__, whose judges nobody would share

    kernelbench.install()
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
