"""Measures sampling: our engine with a static cache, the plain sampling loop, and transformers' `generate`.

    python benchmarks/training/bench_rollout.py                 # SmolLM2-135M's shape, 512 answers of 256 tokens
    python benchmarks/training/bench_rollout.py --device cpu    # a small shape, to check that everything runs

The weights are random, in bfloat16. Answers have no end of sequence and thus their full length; in rows with `ending`
they end at random, half of them by the middle, as those of trained models do. Groups of 8 answers share a prompt.
Tokens are those of answers; the time is from prompts to lists of ids and log-probs; `first_call_s` includes compiling
and capturing. Each row is written as soon as it is measured; --seconds limits the whole run.

`generate` does not return the log-probs that training needs; our engine and the plain loop do. `mismatch` is their mean
absolute difference to the log-probs of a forward pass over whole answers (NaN for `generate`).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernel_coder
import torch
import transformers
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.rollout import Sampling, Turn
from kernel_coder.rollout.static_engine import StaticEngine
from kernel_coder.rollout.transformers_engine import TransformersEngine
from transformers import GenerationConfig

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from random_model import random_model
from side_by_side import MIB, Row, about_this_run, failure, free, write

GROUP = 8
SLOW_S = 4.0
"""A contender that takes longer than this, in seconds, is timed only once."""

Generate = Callable[[], Sequence[Turn] | int]


@dataclass(frozen=True)
class Shape:
    """The shapes of a model and its answers."""

    name: str
    kind: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    answers: int
    prompt: int
    tokens: int

    def model(self, device: str, dtype: torch.dtype) -> Any:
        ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
        return random_model(self, device, kind=self.kind, dtype=dtype, positions=8192, **ends).eval()


SMOL = ("llama", 49152, 576, 1536, 30, 9, 3)
QWEN3B = ("qwen2", 151936, 2048, 11008, 36, 16, 2)
SHAPES = {
    "small": [Shape("small", "llama", 512, 64, 128, 2, 4, 2, 16, 12, 24)],
    "reference": [Shape("SmolLM2-135M", *SMOL, 512, 128, 256)],
    "sweep": [
        Shape("SmolLM2-135M", *SMOL, 64, 128, 256),
        Shape("SmolLM2-135M", *SMOL, 512, 128, 256),
        Shape("SmolLM2-135M", *SMOL, 512, 640, 768),
        Shape("SmolLM2-135M", *SMOL, 2048, 128, 256),
        Shape("Qwen2.5-Coder-3B", *QWEN3B, 256, 512, 256),
    ],
}


class Run:
    """One shape's model, prompts and tokenizer; ``ending`` makes answers end with a chance of 1 / (their length / 1.4)
    a token, by ids that end a sequence."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype, ending: bool) -> None:
        self.shape, self.device = shape, device
        self.model = shape.model(device, dtype)
        self.tokenizer = tiny_tokenizer()
        # With random weights all tokens are about equally likely, so this many of them must end an answer.
        count = round(shape.vocab * 1.4 / shape.tokens) if ending else 0
        self.eos = frozenset(range(shape.vocab - count, shape.vocab)) if ending else frozenset({-1})
        rng = torch.Generator().manual_seed(0)
        prompts = torch.randint(3, shape.vocab, (shape.answers // GROUP, shape.prompt), generator=rng)
        self.prompts = [tuple(prompt) for prompt in prompts.tolist() for _ in range(GROUP)]
        self.sampling = Sampling(max_completion_length=shape.tokens)

    def engine(self, kind: str) -> Generate:
        made: Any
        if kind == "plain loop":
            made = TransformersEngine(self.model, self.tokenizer)
        else:
            # "torch attention": without the kernel; "no graphs": one launch after the other
            options = {"kernel": False} if "torch attention" in kind else {}
            made = StaticEngine(
                self.model, self.tokenizer, **options, **({"graphs": False} if "no graphs" in kind else {})
            )
        made.eos_ids = self.eos
        return lambda: made.generate(self.prompts, self.sampling, range(self.shape.answers))

    def generate(self, cache: str | None) -> Generate:
        """transformers' own; ``cache``: what it calls ``cache_implementation``."""
        ids = torch.tensor(self.prompts, device=self.device)
        config = GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=self.shape.tokens,
            eos_token_id=sorted(self.eos) if self.eos != {-1} else None,
            pad_token_id=0,
            cache_implementation=cache,
        )

        def run() -> int:
            with torch.inference_mode():
                found = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            return (
                int((found[:, ids.shape[1] :] != 0).sum().item())
                if self.eos != {-1}
                else found[:, ids.shape[1] :].numel()
            )

        return run

    @torch.no_grad()
    def mismatch(self, turns: Sequence[Turn]) -> float:
        """The mismatch of some answers; see the module."""
        apart: list[float] = []
        for turn in turns[:: max(1, len(turns) // 16)]:
            ids = torch.tensor([turn.prompt_ids + turn.completion_ids], device=self.device)
            logits = self.model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].float()
            wanted = logits.log_softmax(-1).gather(1, ids[0, len(turn.prompt_ids) :, None])[:, 0]
            apart.append(float((wanted.cpu() - torch.tensor(turn.logprobs)).abs().mean()))
        return statistics.fmean(apart)


def contenders(run: Run, wanted: str, quick: bool) -> Iterator[tuple[str, str, str, Generate]]:
    """Yields one contender after another, so that none holds memory while another is measured."""
    ours, theirs = kernel_coder.__version__, transformers.__version__
    yield "ours", "kernel_coder, static", ours, run.engine("static")
    if not quick:
        yield "ours", "kernel_coder, static, torch attention", ours, run.engine("torch attention")
        yield "ours", "kernel_coder, static, no graphs", ours, run.engine("no graphs")
    yield "ours", "kernel_coder, plain loop", ours, run.engine("plain loop")
    if wanted != "none":
        yield "rival", "transformers generate", theirs, run.generate(None)
        if not quick and run.device == "cuda":
            yield "rival", "transformers generate, static cache compiled", theirs, run.generate("static")


def measured(call: Generate, arguments: Namespace, run: Run, deadline: float) -> dict[str, Any]:
    cuda = run.device == "cuda"

    def once() -> tuple[float, Sequence[Turn] | int]:
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        found = call()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start, found

    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    first, found = once()
    times: list[float] = []
    while len(times) < (arguments.runs if not times or times[0] < SLOW_S else 1) and (
        not times or time.perf_counter() + times[-1] < deadline
    ):
        seconds, found = once()
        times.append(seconds)
    tokens = found if isinstance(found, int) else sum(len(turn.completion_ids) for turn in found)
    seconds = statistics.median(times)
    row = {"first_call_s": f"{first:.2f}", "seconds": f"{seconds:.3f}", "runs": len(times)}
    row |= {"answer_tokens": tokens, "tokens_per_s": f"{tokens / seconds:.0f}"}
    row["mismatch"] = f"{math.nan if isinstance(found, int) else run.mismatch(found):.2g}"
    if cuda:
        row["peak_mib"] = f"{(torch.cuda.max_memory_allocated() - before) / MIB:.0f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", choices=tuple(SHAPES))
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="without variants of ours and without the compiled rival")
    parser.add_argument("--rivals", choices=("all", "none"), default="all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0, help="start no measurement after this many seconds")
    parser.add_argument("--commit", help="commit in the rows, if there is no git")
    parser.add_argument("--out", type=Path, help="CSV file; default on a GPU: results/rollout_DEVICE.csv")
    arguments = parser.parse_args()
    arguments.shapes = arguments.shapes or ("reference" if arguments.device == "cuda" else "small")
    out = arguments.out
    if out is None and arguments.device == "cuda":
        kind = "sweep" if arguments.shapes == "sweep" else "cuda"
        out = Path(__file__).parents[1] / "results" / f"rollout_{kind}.csv"
    deadline = time.perf_counter() + arguments.seconds
    about, rows = about_this_run(arguments), list[Row]()
    for shape in SHAPES[arguments.shapes]:
        for ending in (False, True):
            run = Run(shape, arguments.device, getattr(torch, arguments.dtype), ending)
            for kind, name, version, call in contenders(run, arguments.rivals, arguments.quick):
                if time.perf_counter() > deadline:
                    break
                row: Row = {"model": shape.name, "answers": shape.answers, "prompt": shape.prompt}
                row |= {"tokens": shape.tokens, "ending": ending, "dtype": arguments.dtype}
                row |= {"kind": kind, "implementation": name, "version": version}
                try:
                    row |= measured(call, arguments, run, deadline)
                except Exception as error:  # a rival's failure is a result
                    row["failure"] = failure(error)
                del call
                free(arguments.device == "cuda")
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)
                rows.append({**row, **about})
                if out is not None:
                    write(out, rows, last=("failure", *about))
            del run
            free(arguments.device == "cuda")
    if time.perf_counter() > deadline:
        print(f"stopped after {arguments.seconds:.0f} seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
