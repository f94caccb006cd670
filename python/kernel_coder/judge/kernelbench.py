"""KernelBench's evaluation function and metrics, carried out by our judge.

:func:`eval_kernel_against_ref` has the parameters of KernelBench's function of that name and returns its
``KernelExecResult`` (as of KernelBench's commit 423217d of 5 March 2026). A script that uses it changes one import::

    from kernel_coder.judge.kernelbench import eval_kernel_against_ref, KernelExecResult

A script can also be run without a change: ``python -m kernel_coder.judge.kernelbench scripts/run_and_check.py ...``
replaces KernelBench's function first, and ``pytest -p kernel_coder.judge.kernelbench`` does so for tests. Processes
that a script starts by ``spawn`` import KernelBench's original function again; there the import has to be changed.

Our judge differs from KernelBench's evaluation: the candidate runs in a process and a sandbox of its own, seeds are
secret, every call has new inputs, every timed call is checked, and tolerances follow the error of the reference.
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
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import BaseModel

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.judge import Judge
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks import Task
from kernel_coder.tasks.task import BACKENDS

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""KernelBench's dtypes by the judge's name of the precision."""

TIMING_METHODS = ("cuda_event", "do_bench", "do_bench_impl", "host_time", "nsight_python_time")
"""KernelBench's names of timing methods. Our judge has one method: its own clock, in another process than the calls."""

OPEN_JUDGES = 4
"""Upper limit of the judges that stay open in one process, one for each combination of settings. To open another, the
least recently used one is closed."""


class KernelExecResult(BaseModel):
    """KernelBench's result. Times are in milliseconds, and -1 if nothing was measured."""

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
    """Judge ``custom_model_src`` (with ``ModelNew``) against ``original_model_src`` (with ``Model``).

    Args:
        original_model_src: the reference, as in a file of KernelBench. It is trusted.
        custom_model_src: the candidate. It is not trusted.
        seed_num: not used, because a candidate could know it. The verdict has the seeds that were drawn.
        num_correct_trials: number of calls whose outputs are compared. 1 means a single call. With more, every family
            of inputs has at least one.
        num_perf_trials: number of calls that are timed.
        measure_performance: whether to time the candidate.
        timing_method: not used, but it must be one of KernelBench's names.
        verbose: print the verdict.
        build_dir: not used; the candidate builds in its sandbox.
        device: the device; None: the current GPU, or the CPU if there is no GPU.
        backend: ``triton``, ``cuda``, ``cpp`` or ``torch``.
        precision: ``torch.float32``, ``torch.float16`` or ``torch.bfloat16``.
        check_for_excessive_speedup: set ``metadata["excessive_speedup"]`` if the speedup is above the threshold, or if
            the candidate was rejected and should have been timed.
        excessive_speedup_threshold: largest speedup that counts as plausible.
        judge_config: all other settings of the judge. KernelBench's function has no such parameter. By default the
            library may compute products and convolutions, as KernelBench allows.

    Returns:
        The result, or None if the judge itself failed and nothing is known about the candidate; KernelBench's function
        returns None for "try again". All of ``metadata`` can be written as JSON. Its keys:

        - ``hardware`` and ``device``;
        - for a correct candidate ``correctness_trials``;
        - for other candidates ``compilation_error`` with ``compilation_error_name``; or ``runtime_error`` with
          ``runtime_error_name`` and ``runtime_error_traceback``; or ``correctness_issue`` with ``max_difference`` (a
          list with a number for each output); or ``rejected`` with the reason;
        - ``excessive_speedup``;
        - besides KernelBench's keys ``outcome``, ``speedup``, ``speedup_low``, ``speedup_high``, ``kernel_share``,
          ``feedback`` and the whole ``verdict``.

    Raises:
        ValueError: an unknown backend, precision, timing method or device, a number of trials below 1, or a reference
            against which no candidate can be judged. The message says why.
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
    base = (judge_config or JudgeConfig(allow=("library_matmul",))).model_dump()
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
    """Turn a verdict into KernelBench's result; None if the judge itself failed.

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
    """Return the class of the exception that the verdict names; if it names none, the outcome.

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
    """Return the judge's name for a device of KernelBench's function. Raise ValueError if torch does not see it.

    >>> device_name("cpu"), device_name(torch.device("cpu"))
    ('cpu', 'cpu')
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # else asking creates a CUDA context
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
    """Return this process's judge with these settings, opened at the first call and closed at the process's end."""
    key = (os.getpid(), device, backend, config)
    with _lock:
        if key in _judges:
            _judges.move_to_end(key)
            return _judges[key]
        for other in [other for other in _judges if other[0] != key[0]]:
            del _judges[other]  # it belongs to the process that this one was forked from
        while len(_judges) >= OPEN_JUDGES:
            _judges.popitem(last=False)[1].__exit__(None, None, None)
        judge = Judge(device=device, backend=backend, config=config).__enter__()
        if not _judges:
            # Workers of multiprocessing do not run handlers of atexit.
            multiprocessing.util.Finalize(None, close_judges, exitpriority=100)
        _judges[key] = judge
        return judge


def close_judges() -> None:
    """Close the judges that this process opened."""
    with _lock:
        for (process, *_), judge in list(_judges.items()):
            if process == os.getpid():
                judge.__exit__(None, None, None)
        _judges.clear()


# ---- other functions that KernelBench's scripts use ----------------------------------------------------------------


def get_timing_stats(elapsed_times: Sequence[float], device: Any = None, hardware: str | None = None) -> dict[str, Any]:
    """Return mean, standard deviation, minimum, maximum (milliseconds, three digits) and number of times, or nothing.

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
    """Return the exception's class with its module.

    >>> get_error_name(ValueError())
    'builtins.ValueError'
    """
    return f"{type(error).__module__}.{type(error).__name__}"


def get_torch_dtype_from_string(precision: str) -> torch.dtype:
    """Return the dtype of ``fp32``, ``fp16`` or ``bf16``. Raise ValueError for other names.

    >>> get_torch_dtype_from_string("bf16")
    torch.bfloat16
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    return PRECISIONS[precision]


def check_metadata_serializable_all_types(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata with text in place of values that JSON cannot hold. Our results have none of these."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

    found: dict[str, Any] = plain(metadata)
    return found


def fastp(is_correct: ArrayLike, baseline_speed: ArrayLike, actual_speed: ArrayLike, n: int, p: float) -> float:
    """Return the share of n candidates that are correct and more than p times as fast as the baseline.

    >>> fastp([1, 0, 1], [2.0, 9.0, 1.0], [1.0, 1.0, 1.0], 4, 1.0)
    0.25
    """
    return float((_speedups(is_correct, baseline_speed, actual_speed) > p).sum() / n) if n > 0 else 0.0


def geometric_mean_speed_ratio_correct_only(
    is_correct: ArrayLike, baseline_speed: ArrayLike, actual_speed: ArrayLike, n: int
) -> float:
    """Return the geometric mean of the speedups of correct candidates; 0 if there are none. ``n`` is not used.

    >>> round(geometric_mean_speed_ratio_correct_only([1, 1, 0], [4.0, 1.0, 9.0], [1.0, 1.0, 1.0], 3), 9)
    2.0
    """
    return _geometric_mean(_speedups(is_correct, baseline_speed, actual_speed))


def geometric_mean_speed_ratio_correct_and_faster_only(
    is_correct: ArrayLike, baseline_speed: ArrayLike, actual_speed: ArrayLike, n: int
) -> float:
    """Return the geometric mean of the speedups above 1 of correct candidates; 0 if there are none.

    >>> round(geometric_mean_speed_ratio_correct_and_faster_only([1, 1], [4.0, 1.0], [1.0, 2.0], 2), 9)
    4.0
    """
    speedups = _speedups(is_correct, baseline_speed, actual_speed)
    return _geometric_mean(speedups[speedups > 1])


def _speedups(is_correct: ArrayLike, baseline: ArrayLike, actual: ArrayLike) -> np.ndarray:
    correct = np.asarray(is_correct, dtype=bool)
    return np.asarray(baseline, dtype=np.float64)[correct] / np.asarray(actual, dtype=np.float64)[correct]


def _geometric_mean(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean())) if values.size else 0.0  # a product could overflow


# ---- running KernelBench's own scripts and tests -------------------------------------------------------------------


def install() -> None:
    """Replace KernelBench's evaluation with ours in this process. KernelBench must be installed."""
    import kernelbench.eval as original

    original.eval_kernel_against_ref = eval_kernel_against_ref
    original.KernelExecResult = KernelExecResult


def pytest_configure(config: object) -> None:
    """Install our evaluation. pytest calls this before it imports tests, with ``-p kernel_coder.judge.kernelbench``."""
    install()


def main(arguments: Sequence[str]) -> int:
    """Run a script of KernelBench with our evaluation. Return the exit code."""
    if not arguments or not Path(arguments[0]).is_file():
        print("usage: python -m kernel_coder.judge.kernelbench SCRIPT.py ...", file=sys.stderr)
        return 2
    from kernel_coder.judge import kernelbench  # this module itself, not its second copy that is __main__

    kernelbench.install()
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
