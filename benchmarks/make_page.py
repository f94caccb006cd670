"""Write docs/benchmarks.md from benchmarks/results/*.csv: ``python benchmarks/make_page.py``.

The page holds no number that is typed by hand: every one is read from a row of a file, and tests/test_docs.py checks
that the page is what this script makes of the files. Only the standard library is used.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from pathlib import Path

BENCHMARKS = Path(__file__).parent
RESULTS = BENCHMARKS / "results"


def rows(file: str, **wanted: str) -> list[dict[str, str]]:
    """The rows of ``benchmarks/results/FILE.csv`` whose columns have these values, in the file's order."""
    with (RESULTS / f"{file}.csv").open(newline="") as lines:
        return [row for row in csv.DictReader(lines) if all(row[name] == value for name, value in wanted.items())]


def value(file: str, column: str, **wanted: str) -> float:
    """The number in the one row that matches; the last one where a measurement was repeated."""
    found = rows(file, **wanted)
    if not found:
        raise LookupError(f"{file}.csv has no row with {wanted}")
    return float(found[-1][column])


def percent(share: float) -> str:
    """
    >>> percent(0.9306), percent(1.0), percent(0.0)
    ('93.1%', '100%', '0%')
    """
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


STUDENT = {3: 4.302653, 6: 2.570582}
"""Student's t for a two-sided 95% interval of a mean of so many."""


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def table(head: list[str], *lines: list[str]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def similarity(case: str) -> list[str]:
    found = {row["implementation"]: row for row in rows("sequence_similarity", case=case, characters="4000")}

    def slower(name: str) -> str:
        times = float(found[name]["kernel_coder_is_faster_by"])
        return f"{float(found[name]['median_ms']):.1f} ms ({times:,.0f} times as long)"

    return [
        f"similarity of 4,000 characters, {case.removeprefix('Python files, ')} Python files, one CPU core",
        f"{float(found['kernel_coder']['median_ms']):.3f} ms",
        f"cydifflib {slower('cydifflib')}, `difflib` {slower('difflib')}",
    ]


def logprobs_cpu(phase: str, name: str) -> list[str]:
    def cell(implementation: str) -> str:
        where = {"phase": phase, "tokens": "512", "vocab": "49152", "dtype": "float32"}
        found = rows("token_logprobs_cpu", implementation=implementation, **where)[-1]
        return f"{float(found['median_ms']):.0f} ms, {float(found['peak_extra_mib']):.0f} MiB"

    return [name, cell("kernel_coder"), f"torch.compile {cell('torch.compile')}; eager {cell('torch eager')}"]


def logprobs_gpu(phase: str, name: str, rivals: dict[str, str]) -> list[str]:
    def ms(implementation: str) -> str:
        work = f"log-probs and entropy, {phase}"
        return f"{value('token_logprobs_cuda', 'median_ms', work=work, implementation=implementation):.3f} ms"

    said = ", ".join(f"{rival} {ms(rival)}{remark}" for rival, remark in rivals.items())
    return [name, ms("kernel_coder"), said]


def ops() -> str:
    def grpo(implementation: str) -> str:
        where = {"masked": "0.0", "zero_advantage": "0.0", "implementation": implementation}
        return f"{value('grpo_loss_cuda', 'median_ms', **where):.3f} ms"

    def linear(implementation: str, **more: str) -> str:
        where = {"hidden": "2048", "masked": "0.0", "zero_advantage": "0.0", "implementation": implementation, **more}
        return f"{float(rows('linear_grpo_loss_cuda', **where)[0]['median_ms']):.1f}"

    trl = "TRL's log-probs"
    default = {"chunk_rows": "default", "weight_grad_dtype": "float32"}
    half = linear("kernel_coder", logits_dtype="bfloat16", **default)
    full = linear("kernel_coder", logits_dtype="float32", **default)
    return table(
        ["work", "Kernel Coder", "others"],
        similarity("Python files, edited"),
        similarity("Python files, unrelated"),
        logprobs_cpu("forward", "log-prob and entropy, two CPU cores, float32 [512, 49152]"),
        logprobs_cpu("forward+backward", "the same with its gradient"),
        logprobs_gpu(
            "forward",
            "log-prob and entropy, H200, bfloat16 [8192, 151936]",
            {"Liger": " (without entropy)", "TRL": "", "torch.compile": "", "torch eager": ""},
        ),
        logprobs_gpu(
            "forward and backward", "the same with its gradient", {"TRL": "", "torch.compile": "", "torch eager": ""}
        ),
        [
            "GRPO loss with its gradient written over the logits, same shape",
            grpo("kernel_coder, in place"),
            f"Liger, in place {grpo('Liger, in place')}",
        ],
        [
            "GRPO loss with its gradient in a new tensor",
            grpo("kernel_coder"),
            f"Liger {grpo('Liger')}, TRL {grpo(trl)}, torch.compile {grpo('torch.compile')}",
        ],
        [
            "GRPO loss from hidden states 2,048 wide, with all gradients, same shape",
            f"{half} ms with bfloat16 logits, {full} ms with float32 logits",
            f"the three matrix products alone {linear('three products')} ms; torch.compile {linear('torch.compile')}, "
            f"TRL {linear('TRL')}, cut-cross-entropy {linear('cut-cross-entropy')}, "
            f"Liger {linear('Liger, tf32')} ms with TF32",
        ],
    )


def updates() -> str:
    def sampled(implementation: str, ending: str = "False") -> str:
        return f"{value('rollout_cuda', 'tokens_per_s', implementation=implementation, ending=ending):,.0f}"

    def sft(implementation: str) -> str:
        return f"{value('sft_cuda', 'median_ms', implementation=implementation):.1f} ms"

    def step(file: str, implementation: str, work: str) -> str:
        found = rows(file, implementation=implementation, work=work)[0]
        return f"{float(found['seconds']):.2f} s ({float(found['peak_gib']):.1f} GiB)"

    def longest(implementation: str, tokens: str) -> str:
        found = rows("step_cuda", implementation=implementation, work="longest", tokens=tokens)[-1]
        return f"{float(found['first_call_s']):.1f} s ({float(found['peak_gib']):.1f} GiB)"

    return table(
        ["work, one H200", "Kernel Coder", "others"],
        [
            "sampling 512 answers of 256 tokens, SmolLM2-135M's shape",
            f"{sampled('kernel_coder, static')} tokens a second",
            f"plain loop {sampled('kernel_coder, plain loop')}, "
            f"transformers' `generate` {sampled('transformers generate')}",
        ],
        [
            "the same where answers end at random",
            f"{sampled('kernel_coder, static', 'True')} tokens a second",
            f"plain loop {sampled('kernel_coder, plain loop', 'True')}",
        ],
        [
            "an SFT update, SmolLM2-135M's shape, 8 rows of 2,048 tokens",
            f"{sft('kernel_coder, compiled')} compiled, {sft('kernel_coder')} not",
            f"transformers' Trainer {sft('transformers Trainer, compiled')} compiled, "
            f"{sft('transformers Trainer')} not",
        ],
        [
            "an update, Qwen2.5-Coder-3B's shape, 16 answers of 2,048 tokens",
            f"{step('step_cuda', 'kernel_coder', 'dense')}; "
            f"in little memory {step('step_cuda', 'kernel_coder, the head alone', 'dense')}",
            "; ".join(
                f"{name} {step('step_cuda', name, 'dense')}"
                for name in ("Liger, on logits", "cut-cross-entropy", "torch eager", "TRL")
            ),
        ],
        [
            "the same model, 64 answers of 200 to 1,000 tokens in 4 groups with prompts of 1,000 tokens, half of the "
            "groups without spread",
            step("step_cuda", "kernel_coder", "realistic"),
            "; ".join(
                f"{name} {step('step_cuda', name, 'realistic')}"
                for name in ("cut-cross-entropy", "Liger, on logits", "TRL")
            ),
        ],
        [
            "16 answers of 2,048 tokens with LoRA of rank 64",
            f"{step('step_lora_cuda', 'kernel_coder', 'dense')}; all layers recomputed "
            f"{step('step_lora_cuda', 'kernel_coder, all layers recomputed', 'dense')}",
            "; ".join(
                f"{name} {step('step_lora_cuda', name, 'dense')}"
                for name in ("TRL", "cut-cross-entropy", "Liger, on logits")
            ),
        ],
        *(
            [
                f"the first update on one answer of {int(tokens):,} tokens, all weights",
                longest("kernel_coder", tokens),
                f"TRL {longest('TRL', tokens)}",
            ]
            for tokens in ("131072", "262144")
        ),
    )


RATES = dict.fromkeys(("46b7c54", "623e1e7", "b050174", "9004d41", "6a25542", "084198f"), "") | {
    "24699a6": ", an H100, while a model was trained on the same host",
    "6247d39": ", an H100",
    "8ad3cb3": ", an H100",
    "67a5f45": ", an H100, while a model was trained on the same host",
    "81b6a7f": "",
    "df8f0c1": "",
    "c2eeb7d": "",
    "a8594fc": "",
    "833c4f1": "",
    "7e29ff8": "",
    "f0825a2": "",
}
"""Commits at which both evaluators were timed in one call, on an H200 unless something else is said."""


def judge_rate() -> str:
    """The runs of the last clock: one line for each time that both evaluators were timed in one call."""
    lines = []
    for commit, where in RATES.items():
        line = [f"{commit}{where}"]
        for at_a_time in ("1", "12"):
            row = {"commit": commit, "at_a_time": at_a_time}
            ours = value("judge_rate_cuda", "seconds", implementation="kernel_coder", **row)
            theirs = value("judge_rate_cuda", "seconds", implementation="KernelBench, fresh processes", **row)
            line += [f"{ours:.3f} s", f"{theirs:.3f} s", f"{theirs / ours:.1f}"]
        lines.append(line)
    return table(
        ["commit", "one at a time", "KernelBench", "ratio", "twelve at a time", "KernelBench", "ratio"], *lines
    )


def judge_clock() -> str:
    names = {"softmax": "torch.softmax", "relu(x - 0.5) * 2": "torch.relu", "RMS norm": "x * torch.rsqrt"}
    names["sigmoid(x) * x"] = "torch.sigmoid"
    lines = []
    for size in ("2048x2048", "4096x4096"):
        for name, start in names.items():
            (found,) = [row for row in rows("judge_clock_cuda", size=size) if row["kernel"].startswith(start)]
            columns = ("speedup", "do_bench_speedup", "kernelbench_speedup", "same_least", "same_most")
            ours, do_bench, kernelbench, least, most = (f"{float(found[column]):.2f}" for column in columns)
            lines.append([name, size, ours, do_bench, kernelbench, f"{least} to {most}"])
    return table(["kernel", "size", "judge", "`do_bench`", "KernelBench", "the reference against itself"], *lines)


def judge_spread() -> str:
    def one(neighbours: str) -> list[str]:
        found = rows("judge_spread_cuda", commit=rows("judge_spread_cuda")[-1]["commit"], neighbours=neighbours)[-1]
        numbers = {name: f"{float(found[name]):.2f}" for name in found if name.startswith(("speedup", "lower"))}
        return [
            "alone" if neighbours == "0" else f"beside {neighbours} others that compile",
            f"{found['correct']} of {found['verdicts']}",
            f"{numbers['speedup_least']} to {numbers['speedup_most']}",
            f"{numbers['lower_bound_least']} to {numbers['lower_bound_most']}",
        ]

    return table(["one kernel, thirty verdicts", "correct", "speedups", "lower bounds"], one("0"), one("11"))


def commits(found: list[dict[str, str]]) -> str:
    return " and ".join(sorted({row["commit"] for row in found}))


def judge_corpus() -> str:
    def one(device: str, file: str) -> list[str]:
        line = [device]
        for kind in ("hostile", "honest"):
            found = rows(file, kind=kind)
            good = sum(row["good"] == "True" for row in found)
            line.append(f"{len(found) - good} of {len(found)}" if kind == "hostile" else f"{good} of {len(found)}")
        return [*line, commits(rows(file))]

    return table(
        ["corpus", "hostile candidates accepted", "honest candidates correct", "commit"],
        one("without a GPU, 758 of 775 candidates", "judge_corpus_cpu"),
        one("H200", "judge_corpus_cuda"),
    )


def admission() -> str:
    lines = []
    for level in ("level1", "level2", "level3"):
        found = [row for row in rows("admission_cuda") if row["task"].startswith(level)]
        admitted = [row for row in found if row["admitted"] == "True"]
        holds = sum(float(row["speedup_low"]) <= 1 <= float(row["speedup_high"]) for row in admitted)
        close = sum(0.97 <= float(row["speedup"]) <= 1.03 for row in admitted)
        lines.append(
            [
                level,
                f"{len(admitted)} of {len(found)}",
                f"{holds} of {len(admitted)}",
                f"{close} of {len(admitted)}",
                commits(found),
            ]
        )
    return table(
        ["KernelBench", "tasks admitted", "interval holds 1", "estimate within 0.97 to 1.03", "commit"], *lines
    )


def nano() -> str:
    def one(name: str, found: list[dict[str, str]]) -> list[str]:
        gains = [100 * float(row["heldout_correct_gain"]) for row in found]
        said = f"{mean(gains):+.1f}"
        if len(gains) in STUDENT:
            half = STUDENT[len(gains)] * statistics.stdev(gains) / math.sqrt(len(gains))
            said += f" ({mean(gains) - half:+.1f} to {mean(gains) + half:+.1f})"
        return [
            name,
            " ".join(row["seed"] for row in found),
            percent(mean([float(row["heldout_correct_before"]) for row in found])),
            percent(mean([float(row["heldout_correct_after"]) for row in found])),
            said,
            " ".join(f"{gain:+.1f}" for gain in gains),
        ]

    def trials(setting: str, base: str = "45% wrong") -> list[dict[str, str]]:
        return rows("nano_trials_cpu", setting=setting, base=base)

    second = rows("nano_cpu", commit=SECOND_NANO)
    now = [rows("nano_cpu", steps="28", seed=str(seed))[-1] for seed in range(6)]
    fewer = [rows("nano_cpu", steps="24", seed=str(seed))[-1] for seed in range(6)]
    first = [row for row in rows("nano_cpu", steps="20") if row not in second]
    return table(
        [
            "`make train` and variants of it",
            "seeds",
            "correct before",
            "after",
            "gain in points (95% interval over seeds)",
            "each seed",
        ],
        one("as it is: 28 steps", now),
        one("24 steps", fewer),
        one("20 steps", second),
        one("first packaged model: learning rate 3e-4", trials("3e-4")),
        one("three seeds that the settings were not chosen on", first),
        one("learning rate 5e-4", trials("5e-4")),
        one("learning rate 1e-3", trials("1e-3")),
        one("5e-4, two updates a step", trials("two updates 5e-4")),
        one("5e-4, similarity to known solutions as the only reward", trials("similarity")),
        one("5e-4, from random weights", trials("no-sft", "random weights")),
    )


SECOND_NANO = "b3b2706"
"""Commit of the runs with the packaged model that reads ordinary style."""


def real_run() -> str:
    def one(run: str, file: str, model: str, tasks: str) -> list[str]:
        (found,) = rows(file, model=model, tasks=tasks)

        def share(name: str) -> str:
            low, high = found.get(f"{name}_low"), found.get(f"{name}_high")
            interval = f" ({percent(float(low))} to {percent(float(high))})" if low and high and high != "0.0" else ""
            return percent(float(found[name])) + interval if found[name] else ""

        names = {"base": "SmolLM2-135M", "sft": "after SFT", "rl": "after SFT and GRPO"}
        said = {"compositions": "held-out compositions", "families": "held-out families"}
        what = said.get(tasks, "KernelBench level 1")
        return [
            run,
            f"{what}, {found['task_count']} tasks",
            names[model],
            *map(share, ("compiled", "correct", "fast_1")),
        ]

    last = [("fourth", "real_run_cuda", model, tasks) for tasks in ("compositions", "families", "kernelbench")
            for model in ("base", "sft", "rl")]  # fmt: skip
    earlier = [
        (run, f"real_run_{run}_cuda", model, "compositions")
        for run in ("third", "second", "first")
        for model in ("sft", "rl")
    ]
    return table(
        ["run", "tasks", "model", "compiled", "correct", "fast_1"],
        *(one(run, file, model, tasks) for run, file, model, tasks in [*last, *earlier]),
    )


def versions() -> str:
    names = {"Liger": "Liger", "TRL": "TRL", "cut-cross-entropy": "cut-cross-entropy", "floor": "torch"}
    found = {row["implementation"]: row["version"] for row in rows("linear_grpo_loss_cuda", kind="rival")}
    found["floor"] = rows("linear_grpo_loss_cuda", kind="floor")[0]["version"]
    return ", ".join(f"{name} {found[key]}" for key, name in names.items())


def page() -> str:
    return f"""\
# Benchmarks

[`benchmarks/make_page.py`](../benchmarks/make_page.py) makes this page from the files in
[`benchmarks/results`](../benchmarks/results); a test fails if the two differ. Each row of those files names its device,
its versions, its commit and the command that repeats it. `make bench` runs all of them.

All times are medians, and the other implementations ran in the same process or on the same machine right before or
after. The CPU has two cores of an AMD EPYC with AVX-512. The GPU is one H200.
Versions: {versions()}.

## Ops

{ops()}

[cuda_kernels.md](cuda_kernels.md) explains the CUDA rows and lists what did not help.

## Sampling and updates

{updates()}

Memory in brackets is the peak. Kernel Coder uses the memory that is free, unless told otherwise:
[speed.md](speed.md) says how.

## The judge

Seconds for one verdict on a small, correct Triton kernel on an H200 with 16 cores: 5 checks, a hidden shape and 100
timed calls. KernelBench's evaluator ran in fresh processes on the same machine, right before or after. Each line is
another machine.

{judge_rate()}

Speedups of four kernels over eager torch, by three clocks (commit {rows("judge_clock_cuda")[-1]["commit"]}). The last
column judges the reference against itself, which should give 1:

{judge_clock()}

How much verdicts on one kernel differ (commit {rows("judge_spread_cuda")[-1]["commit"]}):

{judge_spread()}

KernelBench's own tasks, each reference judged as its own candidate. "Interval holds 1" counts correct 99% intervals:

{admission()}

The corpus of hostile and honest candidates ([acceptance table](judge_acceptance.md)):

{judge_corpus()}

## Training kernel-coder-nano on two CPU cores

128 held-out compositions, one answer each at temperature 1, before and after 28 steps, or 20 with the first packaged
model (`nano_trials_cpu.csv`, `nano_cpu.csv`). The held-out compositions of the first three rows are partly in ordinary
style; those of the other rows, with the first packaged model, are not:

{nano()}

## Training SmolLM2-135M on an H200

Nine answers to each generated task and one to each task of KernelBench, at temperature 1, with 95% intervals by
bootstrap over tasks. [experiments.md](experiments.md) describes the four runs. The reward of the first run counted the
clock's noise.

{real_run()}

## A model of 135 million parameters on KernelBench

SmolLM2-135M after supervised training. One answer to each problem at temperature 1.0 and top_p 0.97, judged at the
problems' sizes. An answer is surely faster than eager PyTorch if the lower bound of its interval is above 1.
[kernelbench.md](kernelbench.md) says what the model was trained on, and why KernelBench's evaluator differs.

{kernelbench_on_a_gpu()}

The judge's times beside `triton.testing.do_bench`, which measured the fastest answers of the run on an H100 again:

{remeasured()}

Earlier models, checked at small sizes in Triton's interpreter. An answer is unknown if the interpreter took longer than
60 s.

{on_kernelbench()}

## A step of TRL's trainer on an H100

Forward and backward pass and the optimiser's step over the same batch (`trl_step_cuda.csv`):

{trl_step()}
"""


def kernelbench_on_a_gpu() -> str:
    """Return the table of the answers that were judged on a GPU."""
    lines = []
    names = {"fourth": "2,000 updates, H200", "third": "1,000 updates, H100"}
    for run, level in itertools.product(names, ("level1", "level2")):
        found = [row for row in rows(f"kernelbench_{run}_cuda") if row["task"].startswith(level)]
        right, waiting = (sum(row["outcome"] == which for row in found) for which in ("correct", "not judged"))
        faster = sum(float(row["speedup_low"] or 0) > 1 for row in found)
        theirs = [row for row in found if row["kernelbench"]]
        agreed = sum(row["kernelbench"] == "correct" for row in theirs)
        share = f"{right} ({percent(right / len(found))})"
        by_theirs = f"{agreed} of {len(theirs)}" if theirs else "not run"
        lines.append([names[run], level, str(len(found)), str(waiting), share, str(faster), by_theirs])
    head = ["model", "level", "answers", "not judged", "right", "surely faster", "right by KernelBench's evaluator"]
    return table(head, *lines)


def remeasured() -> str:
    """Return the table of speedups by the judge and by do_bench."""
    found = rows("kernelbench_third_remeasured_cuda")
    lines = [[row["task"], f"{float(row['judge_speedup']):.2f}", f"{float(row['speedup']):.2f}"] for row in found]
    return table(["problem", "judge", "do_bench"], *lines)


def trl_step() -> str:
    """Return the table of steps with TRL's loss and with this project's."""
    lines = [
        [row["shape"], row["loss"], f"{float(row['step_ms']):.0f}", f"{float(row['peak_gib']):.2f}"]
        for row in rows("trl_step_cuda")
    ]
    return table(["model", "loss", "step, ms", "peak memory, GiB"], *lines)


def on_kernelbench() -> str:
    """Return the table of right answers at small sizes."""
    names = {
        "sft": "random weights, SFT, 2,500 updates",
        "rl, 3 steps": "and 3 steps of GRPO",
        "SmolLM2, SFT": "SmolLM2-135M, SFT, 1,200 updates",
        "SmolLM2, SFT, 13 steps of RL": "and 13 steps of GRPO",
    }
    lines = []
    for model, name in names.items():
        for level in ("level1", "level2"):
            found = [row for row in rows("kernelbench_small_cpu", model=model) if row["task"].startswith(level)]
            if not found:
                continue
            right, unknown = (sum(row["outcome"] == which for row in found) for which in ("correct", "unknown"))
            lines.append([name, level, str(len(found)), f"{percent(right / len(found))} ({right})", str(unknown)])
    return table(["model", "KernelBench", "answers", "right", "unknown"], *lines)


if __name__ == "__main__":
    (BENCHMARKS.parent / "docs" / "benchmarks.md").write_text(page())
