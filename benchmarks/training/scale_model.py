"""A model, not a measurement: the time of a training step on 8 and 64 GPUs for models of 3B, 7B and 32B.

    python benchmarks/training/scale_model.py

It prints the table of ``docs/scale.md``. Every constant says whether it was measured, and where, or assumed. A step has
``ANSWERS`` answers for each GPU, so more GPUs mean a larger batch and not a shorter step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

UPDATE_FLOPS = 395e12
"""Floating-point operations a second of one GPU in an update, as 8 for each weight and token (forward, backward, and
every layer's forward pass again). Measured: case 3b of ``parallel_cuda.csv`` on one H100: 65,536 tokens in 4.11 s."""

COPY_BYTES_S = 2.85e12
"""Bytes a second that a GPU reads from its memory while it decodes. Assumed: 0.85 of the 3.35 TB/s in the datasheet of
an H100."""

LAYER_S = 0.13e-3
"""Time of a layer in a decoding step besides reading weights, in seconds. Measured: 512 answers of SmolLM2-135M (30
layers) take 1.035 s for 256 steps (``rollout_cuda.csv``, one H200)."""

INSIDE_BYTES_S = 195e9
"""Bytes a second between the GPUs of a host, in an update. Measured: case 3b of ``parallel_cuda.csv`` on two H100 takes
0.127 s more than half of the time on one, in which 24.7 GB are moved. So overlap with computing is part of it."""

BETWEEN_BYTES_S = 45e9
"""Bandwidth of a GPU to other hosts, in bytes a second. Assumed: a card of 400 Gbit/s for each GPU, 90% used, and
nothing hidden behind computing."""

VERDICT_S = 0.11
"""Time of a verdict, in seconds, 12 candidates at a time on one GPU. Measured: ``judge_rate_cuda.csv``, one H200."""

ANSWERS, PROMPT, ANSWER, GROUP = 32, 1024, 1536, 8
"""Work of a step: answers for each GPU, tokens of a prompt and of an answer, and answers to a prompt. Assumed."""

PASS_ANSWERS = 8
"""Answers in a forward pass, after each of which gradients are summed (``parallel.sync_each_pass``). Assumed."""

GPUS_PER_HOST = 8


@dataclass(frozen=True)
class Model:
    """The size of a model: weights, and layers."""

    name: str
    weights: float
    layers: int


MODELS = (Model("3B", 3.09e9, 36), Model("7B", 7.62e9, 28), Model("32B", 32.8e9, 64))


def rollout_s(model: Model) -> float:
    """Sampling: every decoding step reads all weights and computes all answers of the GPU."""
    computing = 2 * model.weights * ANSWERS / UPDATE_FLOPS
    return ANSWER * (max(2 * model.weights / COPY_BYTES_S, computing) + model.layers * LAYER_S)


def update_s(model: Model) -> float:
    """Computing: all answers, and each prompt once for its group."""
    tokens = ANSWERS * ANSWER + ANSWERS / GROUP * PROMPT
    return 8 * model.weights * tokens / UPDATE_FLOPS


def bandwidth(gpus: int) -> float:
    """Bytes a second between the GPUs of a group."""
    return INSIDE_BYTES_S if gpus <= GPUS_PER_HOST else BETWEEN_BYTES_S


def communication_s(model: Model, gpus: int, replicas: int) -> tuple[float, float]:
    """Communication of an update, and of the gathering before sampling.

    In a pass a GPU receives the 16-bit weights twice and sends 32-bit gradients once. Between copies of the model, each
    GPU sums its part of the gradients.
    """
    group, passes = gpus // replicas, ANSWERS / PASS_ANSWERS
    share = (group - 1) / group
    inside = passes * (2 * 2 + 4) * model.weights * share / bandwidth(group)
    between = passes * 2 * 4 * model.weights / group / BETWEEN_BYTES_S if replicas > 1 else 0.0
    return inside + between, 2 * model.weights * share / bandwidth(group)


def memory_gib(model: Model, gpus: int, replicas: int) -> tuple[float, float]:
    """Memory of a GPU in GiB: 16-bit weights, gradients and AdamW's states, divided; and the copy to sample from."""
    return 8 * model.weights * replicas / gpus / 2**30, 2 * model.weights / 2**30


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the table."""
    for gpus in (8, 64):
        for model in MODELS:
            for replicas in (1,) if gpus <= GPUS_PER_HOST else (1, gpus // GPUS_PER_HOST):
                moved, gather = communication_s(model, gpus, replicas)
                parts = rollout_s(model), ANSWERS * VERDICT_S, update_s(model), moved, gather
                divided, copy = memory_gib(model, gpus, replicas)
                yield (
                    *(str(gpus), model.name, str(replicas)),
                    *(f"{seconds:.1f}" for seconds in (*parts, sum(parts))),
                    f"{divided:.0f} + {copy:.0f}",
                )


HEADER = (
    *("GPUs", "model", "replicas", "rollout, s", "judge, s", "update, s", "communication, s"),
    *("gather, s", "step, s", "weights and states + copy, GiB"),
)


def main() -> None:
    """Prints the table in Markdown."""
    print("|", " | ".join(HEADER), "|")
    print("|", " | ".join("--:" for _ in HEADER), "|")
    for row in rows():
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
