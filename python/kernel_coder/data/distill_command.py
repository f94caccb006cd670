"""The flags and the output of ``kernel-coder data distill``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_coder.data.distill import DistillReport, Judging, Prices, distill
from kernel_coder.data.questions import DistillPlan
from kernel_coder.evaluate.answers import Model
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import EXIT_HARNESS, EXIT_STOPPED, HarnessFailed, ServerFailed, UsageError
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.policy.defaults import defaults_of
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.flags import end, validated
from kernel_coder.run.signals import listening

DESCRIPTION = """\
Asks a teacher model for Triton solutions and keeps those that the judge finds correct. Every answer goes to
<out>.answers.jsonl and every verdict to <out>.verdicts.jsonl, so the same command continues an interrupted one."""

CONTINUE_HINT = "the same command continues"


def add_distill(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE.parquet", help="file to write; report and logs go beside it")
    add(
        "--implement",
        nargs="+",
        default=[],
        metavar="SOURCE",
        help="ask for a module and its solution: ops (packaged list), text files with one operation a line, generator",
    )
    add(
        "--convert",
        nargs="+",
        default=[],
        metavar="SOURCE",
        help="ask for solutions of modules: packaged, files and folders of pairs or tasks, generator",
    )
    add("--count", type=int, help="highest number of questions from each source; required for the generator")
    add("--samples", type=int, default=4, help="answers to each question (default 4)")
    add(
        "--prompt-template",
        help="prompt template of --convert: kernel_coder, kernelbench, nano, bare or a .jinja file (default: the "
        "model's own, or kernel_coder)",
    )
    add("--implement-template", metavar="FILE.jinja", help="prompt template of --implement (default: packaged)")
    add("--one-shot", action="store_true", help="show a solved example in prompts of --convert")
    add("--drop-thinking", action="store_true", help="write rows without reasoning, for models that answer directly")

    teacher = parser.add_argument_group("teacher").add_argument
    teacher("--model", required=True, help="local folder or hub id; with --base-url the server's name for a model")
    teacher("--base-url", metavar="URL", help="URL of an OpenAI-compatible server, such as http://localhost:8000/v1")
    teacher("--api-key-env", metavar="NAME", help="environment variable that holds the server's API key")
    teacher("--concurrency", type=int, default=8, help="number of requests sent to the server at once (default 8)")
    teacher(
        "--request-timeout-s", type=float, default=600.0, metavar="SECONDS", help="limit for a request (default 600)"
    )
    teacher("--max-retries", type=int, default=6, help="retries of a failed request (default 6)")
    teacher("--extra-body", type=_json, default={}, metavar="JSON", help="more fields for each request")
    teacher("--temperature", type=float, default=1.0, help="sampling temperature; 0: greedy decoding (default 1)")
    teacher("--top-p", type=float, default=1.0, help="probability mass of nucleus sampling (default 1)")
    teacher(
        "--max-new-tokens", type=int, help="length limit of an answer, in tokens (default: the model's own, or 8192)"
    )
    teacher("--price-prompt", type=float, default=0.0, metavar="PRICE", help="price of a million prompt tokens")
    teacher("--price-completion", type=float, default=0.0, metavar="PRICE", help="price of a million completion tokens")
    teacher("--dtype", default="auto", help="dtype of a local model: auto, float32, bfloat16, float16")
    teacher("--batch-size", type=int, default=16, help="answers that a local model generates at once (default 16)")
    teacher("--chat-template", metavar="FILE", help="chat template of a local model without one, or plain")
    teacher("--gguf-file", metavar="NAME", help="name of a GGUF file inside the model's folder")
    teacher("--revision", help="commit or tag of a model on the hub")

    judge = parser.add_argument_group("judge").add_argument
    judge("--device", default="auto", help="device of judge and local model: auto, cpu, cuda or cuda:N")
    judge("--workers", type=int, help="number of candidates judged at once (default: one per core, at most 12)")
    judge("--timeout", type=float, metavar="SECONDS", help="time limit for one candidate (default 60)")
    judge("--timing", action="store_true", help="measure speedups on a GPU, for the column speedup")


def run_distill(
    options: argparse.Namespace,
    make_model: Callable[[EvaluateConfig], Model] | None = None,
    make_judge: Callable[..., Judging] | None = None,
) -> int:
    """Runs distill with parsed flags and returns the exit code."""
    from kernel_coder.evaluate.devices import resolve_device, resolve_dtype
    from kernel_coder.evaluate.run import Counting, load_judge, load_model

    found = {} if options.base_url else defaults_of(options.model)
    options.prompt_template = options.prompt_template or found.get("prompt_template", "kernel_coder")
    if options.max_new_tokens is None:
        options.max_new_tokens = found.get("max_new_tokens", 8192)
    plan = _plan(options)
    prices = Prices(
        prompt=_price(options.price_prompt, "prompt"), completion=_price(options.price_completion, "completion")
    )
    device = resolve_device(options.device)
    own = ("model", "base_url", "api_key_env", "concurrency", "request_timeout_s", "max_retries", "extra_body")
    sampling = ("temperature", "top_p", "max_new_tokens", "batch_size", "chat_template", "gguf_file", "revision")
    values = {name: getattr(options, name) for name in (*own, *sampling)}
    dtype = resolve_dtype(options.dtype, device) if options.base_url is None else options.dtype
    teacher = validated(EvaluateConfig, {**values, "dtype": dtype, "device": device})
    if options.timeout is not None and not options.timeout > 0:
        raise UsageError(f"--timeout must be more than 0; got {options.timeout:g}")
    judge = validated(
        JudgeConfig,
        {"workers": options.workers, "timeout_s": options.timeout, "timing": options.timing, "profile": False},
    )
    try:
        with listening() as stop, Counting(sys.stderr) as progress:
            report = distill(
                plan,
                options.out,
                teacher,
                judge=judge,
                make_model=make_model or load_model,
                make_judge=make_judge or load_judge,
                progress=progress,
                prices=prices,
                poll=stop.poll,
            )
    except HarnessFailed as error:
        return end(f"{error}; all answers are saved: {CONTINUE_HINT}", EXIT_HARNESS)
    except ServerFailed as error:
        return end(f"{error}; all answers are saved: {CONTINUE_HINT}", EXIT_STOPPED)
    except StopRequested as error:
        return end(f"stopped by {error}; all answers are saved: {CONTINUE_HINT}", EXIT_STOPPED)
    except UsageError as error:
        raise UsageError(str(error).replace("continue with --resume", CONTINUE_HINT)) from None
    _print(report, options.out)
    return 0


def _plan(options: argparse.Namespace) -> DistillPlan:
    return DistillPlan(
        implement=tuple(options.implement),
        convert=tuple(options.convert),
        count=options.count,
        samples=options.samples,
        seed=options.seed,
        families=tuple(options.families) if options.families else None,
        levels=tuple(options.levels),
        splits=tuple(options.splits),
        per_structure=options.per_structure,
        against=options.against,
        max_size=options.max_size,
        allow_kernelbench=options.allow_kernelbench,
        prompt_template=options.prompt_template,
        implement_template=options.implement_template,
        one_shot=options.one_shot,
        drop_thinking=options.drop_thinking,
    )


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object; got {text!r}")
    return value


def _price(price: float, of: str) -> float:
    if not 0 <= price < float("inf"):
        raise UsageError(f"--price-{of} must be at least 0; got {price:g}")
    return price


def _print(report: DistillReport, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    share = f" ({report.rows / report.answers:.0%})" if report.answers else ""
    say(f"{report.rows:,} pairs from {report.answers:,} answers{share} to {report.questions:,} questions: {out}")
    tokens = f"{report.prompt_tokens:,} prompt and {report.completion_tokens:,} completion tokens"
    price = f", {report.cost:,.4g} in total" if report.cost else ""
    each = f", {report.cost / report.rows:,.4g} per pair" if report.cost and report.rows else ""
    say(f"{tokens}{price}{each}; {report.seconds:,.0f} s of the teacher's time")
    if report.uncounted:
        say(f"the server reported no number of tokens for {report.uncounted:,} answers")
    if report.judged < report.answers:
        say(f"{report.answers - report.judged:,} answers have no verdict, because the judge failed: {CONTINUE_HINT}")
    sections = (("dropped answers", report.table()), ("questions not asked", report.not_asked_table()))
    for title, table in sections:
        if table:
            shown = Table("stage", "reason", "number", title=f"{title}, each in {out.with_suffix('.report.json').name}")
            for stage, reason, number in table:
                shown.add_row(stage, reason, f"{number:,}")
            console.print(shown)
    say(f"rows' SHA-256: {report.content_hash}")
    if report.rows:
        say(f"next: kernel-coder sft --data.path {out} --model.name_or_path MODEL")
