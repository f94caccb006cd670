"""Counts the tokens of prompts and answers of a table of pairs.

    python benchmarks/training/kernelbench/lengths.py data/kernelbench-135m-rl.parquet --tokenizer FOLDER

The prompt is that of the template ``nano``, the answer has the row's thinking. Prints quantiles, and the share of pairs
that a limit of 2,048, 3,072 and 4,096 tokens keeps.
"""

from __future__ import annotations

import argparse

import numpy as np
from kernel_coder.prompts import build_answer, build_messages
from kernel_coder.tasks import load_tasks
from transformers import AutoTokenizer


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("--tokenizer", required=True, help="folder of a tokenizer or model")
    parser.add_argument("--gguf-file", help="name of a GGUF file in that folder")
    options = parser.parse_args()
    extra = {"gguf_file": options.gguf_file} if options.gguf_file else {}
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer, **extra)
    prompts, answers = [], []
    for task in load_tasks(options.pairs):
        prompts.append(len(tokenizer.encode(build_messages(task, "bare")[0]["content"])))
        answer = build_answer(task.solution or "", str(task.metadata.get("thinking") or ""))
        answers.append(len(tokenizer.encode(answer)))
    whole = np.array(prompts) + np.array(answers)
    for name, counts in (("prompt", prompts), ("answer", answers), ("whole", whole)):
        shown = ", ".join(f"{share}%: {np.percentile(counts, share):.0f}" for share in (10, 50, 90, 99, 100))
        print(f"{name}: mean {np.mean(counts):.0f}; {shown}")
    for limit in (900, 1500):
        print(f"answers under {limit} tokens: {np.mean(np.array(answers) < limit):.1%}")
    for limit in (2048, 3072, 4096):
        print(f"pairs of at most {limit} tokens: {np.mean(whole <= limit):.1%}")


if __name__ == "__main__":
    main()
