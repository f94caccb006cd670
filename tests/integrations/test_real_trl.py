"""TRL itself: the fused trainer's gradients, rewards on verdicts, conversations, and the tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
import torch
import trl
from datasets import Dataset
from kernel_coder.integrations.scoring import rows, task_of
from kernel_coder.integrations.trl import JudgedReward, kernel_environment, kernel_rollout
from kernel_coder.integrations.trl_trainer import FusedGRPOTrainer
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.policy.model import NANO_FOLDER
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries
]

LOSSES: list[dict[str, Any]] = [
    {"loss_type": "dapo"},
    {"loss_type": "grpo", "beta": 0.04},
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
    {"loss_type": "bnpo", "delta": 1.5},
    {"loss_type": "dr_grpo", "beta": 0.1, "use_bias_correction_kl": True},
    {"loss_type": "cispo", "epsilon_high": 1.2},
    {"loss_type": "sapo"},
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
]


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def config(folder: Path, **more: Any) -> GRPOConfig:
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 64,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "model_init_kwargs": {"dtype": "float32"},
        "seed": 3,
    }
    return GRPOConfig(**{**settings, **more})


def batch(has_ref: bool) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(11)
    sequences, prompt, completion = 4, 6, 9
    lengths = torch.tensor([9, 4, 7, 1])
    mask = (torch.arange(completion) < lengths[:, None]).long()
    prompt_mask = (torch.arange(prompt) >= torch.tensor([0, 2, 3, 1])[:, None]).long()
    tools = torch.ones(sequences, completion, dtype=torch.long)
    tools[0, 3:5] = 0
    made = {
        "prompt_ids": torch.randint(1, 1024, (sequences, prompt), generator=drawn),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(1, 1024, (sequences, completion), generator=drawn),
        "completion_mask": mask,
        "tool_mask": tools,
        "advantages": torch.tensor([1.3, -0.4, 0.0, -2.0]),
        "old_per_token_logps": -6.9 + 0.3 * torch.randn(sequences, completion, generator=drawn),
        "num_items_in_batch": (mask * tools).sum().float(),
    }
    if has_ref:
        made["ref_per_token_logps"] = -6.9 + 0.3 * torch.randn(sequences, completion, generator=drawn)
    return made


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: "-".join(map(str, loss.values())))
def test_loss_and_gradients_equal_those_of_trl(loss: dict[str, Any], tmp_path: Path) -> None:
    found = {}
    tiny().save_pretrained(tmp_path / "model")  # TRL loads the reference model by its name
    for kind in (GRPOTrainer, FusedGRPOTrainer):
        trainer = kind(
            model=str(tmp_path / "model"),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config(tmp_path, temperature=0.8, gradient_accumulation_steps=2, **loss),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
            processing_class=AutoTokenizer.from_pretrained(NANO_FOLDER),
        )
        trainer.current_gradient_accumulation_steps = 2
        trainer.model.train()
        value = trainer._compute_loss(trainer.model, batch(has_ref="beta" in loss))
        value.backward()
        found[kind] = (
            value.item(),
            {name: one.grad.clone() for name, one in trainer.model.named_parameters()},
            {name: values[-1] for name, values in trainer._metrics["train"].items()},
        )
    (theirs, by_trl, metrics), (ours, by_us, same) = found[GRPOTrainer], found[FusedGRPOTrainer]
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)
    assert by_us.keys() == by_trl.keys()
    largest = max(float(one.abs().max()) for one in by_trl.values())
    assert largest > 1e-4
    for name, gradient in by_trl.items():
        assert float((by_us[name] - gradient).abs().max()) < 2e-6 * max(largest, 1.0), name
    for name in same:
        assert same[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name


def test_settings_that_the_fused_loss_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs entropy_coef=0\.0; got 0\.1"):
        FusedGRPOTrainer(
            model=tiny(),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config(tmp_path, model_init_kwargs=None, entropy_coef=0.1),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
            processing_class=AutoTokenizer.from_pretrained(NANO_FOLDER),
        )


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("cpu", "triton", config=JudgeConfig(workers=1, timing=False, checks=1, null_candidates=False)) as one:
        yield one


def nano(kind: type[GRPOTrainer], folder: Path, **options: Any) -> GRPOTrainer:
    return kind(
        model=AutoModelForCausalLM.from_pretrained(NANO_FOLDER, dtype=torch.float32),
        args=config(folder, model_init_kwargs=None, max_steps=2, max_completion_length=384, learning_rate=1e-4),
        processing_class=AutoTokenizer.from_pretrained(NANO_FOLDER),
        **options,
    )


@pytest.mark.parametrize("kind", [GRPOTrainer, FusedGRPOTrainer])
def test_trl_trains_on_verdicts(kind: type[GRPOTrainer], tmp_path: Path, judge: Judge) -> None:
    data = Dataset.from_list(rows("packaged:pointwise", "nano")[:4])
    trainer = nano(kind, tmp_path, reward_funcs=JudgedReward(judge, "kernel_coder"), train_dataset=data)
    trainer.train()
    logged = [one for one in trainer.state.log_history if "reward" in one]
    assert len(logged) == 2
    assert all(one["kernel_coder/unscored"] == 0.0 for one in logged)
    assert any(one["reward"] > 0 for one in logged)
    assert "rewards/kernel_coder/mean" in logged[0]


def test_conversations_are_one_sequence_with_masked_feedback(tmp_path: Path, judge: Judge) -> None:
    table = rows("packaged:pointwise", "nano")[:4]
    tasks = [task_of(row["reference"], task_id=row["task_id"], backend=row["backend"]) for row in table]
    seen: list[Any] = []
    rollout = kernel_rollout(tasks, judge, max_turns=2, prompt_template="nano", feedback_template="nano")

    def watched(prompts: Any, trainer: Any) -> Any:
        seen.append(rollout(prompts, trainer))
        return seen[-1]

    trainer = nano(
        FusedGRPOTrainer,
        tmp_path,
        reward_funcs=JudgedReward(judge, "kernel_coder"),
        train_dataset=Dataset.from_list(table),
        rollout_func=watched,
    )
    trainer.train()
    assert len(seen) == 2
    for made in seen:
        for ids, mask, logprobs, turns in zip(
            made["completion_ids"], made["env_mask"], made["logprobs"], made["turns"], strict=True
        ):
            assert len(ids) == len(mask) == len(logprobs)
            assert (0 in mask) == (turns > 1)
            assert all(value == 0.0 for value, is_own in zip(logprobs, mask, strict=True) if not is_own)
    assert any(turns == 2 for made in seen for turns in made["turns"])


def test_trl_accepts_the_tool(tmp_path: Path, judge: Judge) -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO_FOLDER)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    data = rows("packaged:pointwise", "nano")[:4]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(NANO_FOLDER, dtype=torch.float32),
        args=config(tmp_path, model_init_kwargs=None, max_steps=1, max_completion_length=16),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(data),
        environment_factory=kernel_environment(judge, "kernel_coder"),
    )
    trainer.train()
    (logged,) = [one for one in trainer.state.log_history if "reward" in one]
    assert logged["reward"] == 0.0, "nano calls no tool"
    environment = kernel_environment(judge, "kernel_coder")()
    environment.reset(**{name: value for name, value in data[0].items() if name != "prompt"})
    assert environment.judge_kernel(data[0]["solution"]).startswith("correct")
    assert environment.get_reward() == 1.0
