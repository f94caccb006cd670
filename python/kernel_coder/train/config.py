"""The one description of a training run: parsed, used and logged as the same frozen object.

Leaf names and defaults are TRL's where the meaning is TRL's. Precedence: flags, the YAML file, the defaults here.
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.batching import devices_of
from kernel_coder.rewards import PRESETS
from kernel_coder.run.flags import UsageError, rule
from kernel_coder.run.recipe import flag_values, read_recipe


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelConfig(Section):
    """Which model is trained."""

    name_or_path: str = Field(
        default="tiny", description="hub id, local folder, nano: the packaged model, or tiny: a random two-layer one"
    )
    revision: str | None = Field(default=None, description="commit or tag on the hub")
    gguf_file: str | None = Field(default=None, description="name of a GGUF file inside name_or_path")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    bf16: bool = Field(default=False, description="compute in bfloat16 while the weights keep their dtype (autocast)")
    device: str = Field(default="auto", description="auto (a GPU if the ops run there), cpu, cuda or cuda:N")
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] = "sdpa"
    gradient_checkpointing: bool | Literal["auto"] = Field(
        default="auto",
        description="recompute activations in the backward pass; auto: of as few layers as the GPU's free memory asks",
    )
    chat_template: str | None = Field(
        default=None, description="file with a Jinja chat template, or plain, for a tokenizer that has none"
    )
    use_peft: bool = Field(default=False, description="train LoRA adapters instead of all weights")
    lora_r: int = Field(default=16, ge=1)
    lora_alpha: int = Field(default=32, ge=1)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_target_modules: list[str] | str = "all-linear"


class DataConfig(Section):
    """Which tasks are trained on."""

    path: str = Field(
        default="packaged",
        description="packaged, packaged:generated, a hub data set, a parquet or JSONL file, or a folder",
    )
    revision: str | None = Field(default=None, description="commit of a hub data set")
    split: str | None = Field(default=None, description="split of a hub data set")
    format: str = Field(default="auto", description="columns of a table: auto, kernelbook, kernelbench; or python")
    families: list[str] | None = Field(default=None, description="only tasks of these families (column family)")
    exclude_families: list[str] | None = Field(
        default=None, description="no tasks of these families, on neither side: to see later what carries over to them"
    )
    max_level: int | None = Field(default=None, ge=0, description="no tasks that are harder than this (column level)")
    limit: int | None = Field(default=None, ge=1, description="use only the first tasks")
    shuffle: bool = Field(default=True, description="a new order every epoch")
    prompt_template: str = Field(default="kernel_coder", description="kernel_coder, kernelbench, nano or a .jinja file")
    one_shot: bool = Field(default=False, description="show a solved example first")
    max_prompt_length: int | None = Field(
        default=None, ge=1, description="drop (and count) tasks with a longer prompt, in tokens"
    )


class RolloutConfig(Section):
    """How answers are sampled."""

    engine: Literal["auto", "static", "transformers"] = Field(
        default="auto",
        description="static: cache of fixed size, CUDA graphs; auto: that on a GPU, for models whose layers it knows",
    )
    num_generations: int = Field(default=8, ge=1, description="answers to each prompt: the size of a group")
    max_completion_length: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, description="0 is off")
    batch_size: int | None = Field(
        default=None,
        ge=1,
        description="sequences sampled at once; default: all of a step, half of them where further turns may follow",
    )
    max_resampling_rounds: int = Field(
        default=0,
        ge=0,
        description="dynamic sampling (DAPO): times that groups of equal rewards make room for further tasks; 0: off",
    )
    max_turns: int = Field(default=1, ge=1, description="answers of a conversation: each after a verdict on the last")
    stop_when_correct: bool = Field(default=False, description="a correct answer is the last of its conversation")
    feedback_template: str = Field(
        default="feedback", description="what is said to a verdict: feedback, nano or a .jinja file"
    )
    context: Literal["all", "last", "best"] = Field(
        default="all", description="earlier turns that are shown: all, or the last or the best context_turns of them"
    )
    context_turns: int = Field(default=1, ge=1, description="of context last and best")
    earlier_reasoning: Literal["keep", "summary", "drop"] = Field(
        default="keep",
        description="what later turns see of the reasoning; keep leaves the tokens as sampled",
    )
    fixed_batches: bool = Field(
        default=True,
        description="batches do not depend on how long verdicts take: equal bits; false: no verdict holds up another",
    )

    def batch_size_of(self, rollouts: int) -> int:
        """Of how many rollouts a batch is made. With further turns, one half is sampled while the other is judged."""
        return self.batch_size or (max(rollouts, 1) if self.max_turns == 1 else -(-rollouts // 2) or 1)


class SamplerConfig(Section):
    """Which tasks are drawn."""

    kind: Literal["epochs", "success"] = Field(
        default="epochs",
        description="epochs: each task once in each; success: by p (1 - p) + floor of its measured success rate p",
    )
    floor: float = Field(default=0.05, gt=0, description="weight of a task that is always or never solved")
    decay: float = Field(default=0.7, ge=0, lt=1, description="of the moving averages of measured rates")
    success_reward: float = Field(
        default=1.0, description="without a judge: the total reward from which an answer counts as solved"
    )
    max_level: int | None = Field(
        default=None, ge=0, description="the hardest tasks to begin with (column level); None: all levels at once"
    )
    level_up_at: float = Field(default=0.6, gt=0, le=1, description="success rate that lets the next level begin")
    level_up_after: int = Field(default=64, ge=1, description="answers to tasks of a level that are seen before")


class AdvantagesConfig(Section):
    """How rewards become advantages."""

    mode: Literal["grpo", "rloo", "trloo", "loo_std", "reinforce_pp", "maxrl"] = Field(
        default="grpo", description="trloo is rloo where a turn without another to compare with keeps its return"
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group", description="standard deviation that grpo divides by"
    )
    eps: float | None = Field(default=None, ge=0, description="default: 1e-4, or what the mode's source uses")
    gamma: float = Field(default=1.0, ge=0, description="what the return of the next turn counts for; Kevin: 0.4")
    turn_returns: Literal["sum", "max", "last", "per_turn"] = Field(
        default="sum", description="return of a turn: of its own and later rewards the sum, the largest or the last"
    )
    baseline: Literal["turn", "group"] = Field(
        default="turn", description="compare with the same turn of the group's conversations, or with all their turns"
    )
    thinking_weights: dict[str, float] = Field(
        default={}, description="factors of the rewards' weights, by label, for the tokens of the reasoning"
    )
    answer_weights: dict[str, float] = Field(default={}, description="likewise for the tokens of the answer")

    @model_validator(mode="after")
    def _only_grpo_scales(self) -> AdvantagesConfig:
        if self.mode != "grpo" and self.scale_rewards != "group":
            raise ValueError(f"scale_rewards applies to mode grpo only; got {self.scale_rewards} with {self.mode}")
        return self

    @property
    def op_mode(self) -> str:
        """The mode as ``ops.group_advantages`` names it."""
        if self.mode == "grpo":
            return {"group": "grpo", "batch": "batch", "none": "dr_grpo"}[self.scale_rewards]
        return "rloo" if self.mode == "trloo" else self.mode

    @property
    def op_singleton(self) -> str:
        """What a turn without another to compare with gives, as ``ops.turn_advantages`` names it."""
        return "reward" if self.mode == "trloo" else "zero"


class ShareRejectionConfig(Section):
    """Correct answers whose own kernels take little of the device's time leave the loss, by chance (Dr. Kernel).

    One of share s is kept with probability (s - threshold) / width, cut to 0 and 1. The share is the judge's profile of
    a GPU: without one there is nothing to go by.
    """

    threshold: float | None = Field(
        default=None, ge=0, le=1, description="share up to which none is kept (Dr. Kernel: 0.3); None: off"
    )
    width: float = Field(default=0.1, gt=0, le=1, description="shares above the threshold by so much are all kept")
    keep_from_speedup: float | None = Field(default=None, gt=0, description="keep whatever is so many times faster")


class LossConfig(Section):
    """The policy loss: a preset by name, and any field of ``ops.LossSpec`` in its place; None keeps the preset's."""

    loss_type: str = Field(
        default="dapo", description="a preset of ops.LossSpec: grpo, dr_grpo, dapo, gspo, cispo, ..."
    )
    surrogate: str | None = None
    importance_sampling_level: str | None = None
    reduction: str | None = None
    length_constant: float | None = Field(
        default=None, gt=0, description="dr_grpo: rollout.max_completion_length if not given"
    )
    epsilon: float | None = Field(default=None, ge=0)
    epsilon_high: float | None = Field(default=None, ge=0)
    delta: float | None = Field(default=None, gt=0)
    dual_clip: float | None = Field(default=None, gt=0)
    log_ratio_clamp: float | None = None
    ratio_penalty: float | None = None
    ratio_to_rollout: bool | None = None
    sapo_temperature_pos: float | None = None
    sapo_temperature_neg: float | None = None
    vespo_k_pos: float | None = None
    vespo_lambda_pos: float | None = None
    vespo_k_neg: float | None = None
    vespo_lambda_neg: float | None = None
    beta: float | None = Field(
        default=None, ge=0, description="weight of the KL to the initial model; 0 keeps no reference"
    )
    kl_estimator: str | None = None
    use_bias_correction_kl: bool | None = None
    kl_input_clamp: float | None = None
    kl_output_clamp: float | None = None
    entropy_coef: float | None = None
    mismatch: str | None = None
    mismatch_min: float | None = None
    mismatch_max: float | None = None
    missing_rollout: str | None = None
    token_veto: float | None = None
    off_policy_mask_threshold: float | None = None
    mask_truncated_completions: bool = Field(
        default=False, description="leave answers cut by max_completion_length out of the loss"
    )


class RewardConfig(Section):
    """One term of the reward."""

    name: str = Field(description="format, similarity, or package.module:function")
    weight: float = 1.0
    params: dict[str, Any] = {}
    schedule: Any = Field(default=None, description="how the weight changes with the step; see rewards.Schedule")
    required: bool = Field(default=False, description="an answer that this reward cannot judge has no reward at all")
    label: str | None = Field(default=None, description="name in tables and logs; default: the name or function")


class StageConfig(Section):
    """A stage of the rewards: what counts in it, and what ends it."""

    weights: dict[str, float] = Field(
        min_length=1, description="factors of the rewards' weights by label; a reward not named is only reported"
    )
    until: str | None = Field(default=None, description="metric that ends the stage, for example judge/compiled")
    reaches: float | None = Field(default=None, description="moving average of it that does")
    min_steps: int = Field(default=1, ge=1, description="steps that the stage lasts at least")


class JudgeSection(JudgeConfig):
    """The judge that rewards on verdicts ask: where it works, and every field of ``judge.JudgeConfig``."""

    device: str = Field(
        default="auto", description="auto (a GPU if there is one), cpu, cuda, cuda:N, or several: cuda:1,cuda:2"
    )
    backend: Literal["triton", "cuda", "cpp", "torch"] | None = Field(
        default=None, description="what answers are written in; None: what each task asks for"
    )
    remember: bool = Field(
        default=False, description="equal code for one task is judged once in the run; false: once in a step"
    )

    @field_validator("device")
    @classmethod
    def _device_is_one(cls, value: str) -> str:
        try:
            value == "auto" or devices_of(value)
        except ValueError as error:
            raise ValueError(str(error).replace("device must be cpu", "must be auto, cpu")) from None
        return value

    def judge_config(self) -> JudgeConfig:
        return JudgeConfig.model_validate(self.model_dump(exclude={"device", "backend", "remember"}))


class AdamConfig(Section):
    """The optimiser, its schedule, and the size of a forward pass."""

    learning_rate: float = Field(default=1e-6, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    lr_scheduler_type: str = Field(default="linear", description="any schedule of transformers.get_scheduler")
    lr_scheduler_kwargs: dict[str, Any] = {}
    warmup_steps: int = Field(default=0, ge=0, description="updates")
    max_grad_norm: float = Field(default=1.0, gt=0)
    per_device_train_batch_size: int = Field(default=8, ge=1, description="sequences in a forward pass")
    gradient_accumulation_steps: int = Field(default=1, ge=1, description="forward passes in an update")


class OptimConfig(AdamConfig):
    """The optimiser and how a generation batch is cut into updates."""

    steps_per_generation: int | None = Field(
        default=None, ge=1, description="forward passes over a generation batch; default: gradient_accumulation_steps"
    )
    num_iterations: int = Field(default=1, ge=1, description="times that a generation batch is trained on")
    packing: bool = Field(default=True, description="sequences of a forward pass one behind the other, without padding")
    share_prompts: bool = Field(
        default=True, description="with packing: the prompt of a group's answers is computed once in a forward pass"
    )


class EvalConfig(Section):
    """Evaluation on tasks that are never trained on."""

    path: str | None = Field(
        default=None, description="data set of held-out tasks; None: they are taken out of data.path"
    )
    num_tasks: int = Field(default=0, ge=0, description="tasks held out of data.path, chosen by a hash of their id")
    num_generations: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.0, ge=0, description="0 is greedy")


class RunConfig(Section):
    """What is written, when, and how long the run lasts."""

    output_dir: str = "runs/default"
    overwrite_output_dir: bool = Field(
        default=False, description="remove an earlier run from output_dir, unless it is resumed"
    )
    max_steps: int = Field(
        default=100, ge=1, description="generation batches; TRL counts updates, the same unless a batch gives several"
    )
    seed: int = Field(default=42, ge=0)
    num_threads: int | None = Field(
        default=None, ge=1, description="CPU threads of torch; results are equal for equal numbers"
    )
    logging_steps: int = Field(default=1, ge=1)
    eval_steps: int | None = Field(default=None, ge=1)
    eval_on_start: bool = False
    save_steps: int = Field(default=100, ge=1)
    save_total_limit: int = Field(default=2, ge=1)
    max_skipped_updates: int = Field(default=10, ge=1, description="stop after so many refused updates in a row")
    report_to: list[str] = Field(
        default=[], description="further trackers, by accelerate's names: wandb, trackio, mlflow, ..."
    )
    project: str = "kernel-coder"


class RunnableConfig(Section):
    """What every kind of run has: a model, data, and where and how long it runs."""

    if TYPE_CHECKING:  # each kind declares its own, in the order in which they are written out

        @property
        def model(self) -> ModelConfig: ...
        @property
        def data(self) -> DataConfig: ...
        @property
        def run(self) -> RunConfig: ...

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


class TrainConfig(RunnableConfig):
    """Every choice of a training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    sampler: SamplerConfig = SamplerConfig()
    advantages: AdvantagesConfig = AdvantagesConfig()
    loss: LossConfig = LossConfig()
    share_rejection: ShareRejectionConfig = ShareRejectionConfig()
    rewards: list[RewardConfig] = Field(
        default=[RewardConfig(name="format"), RewardConfig(name="similarity")],
        description="terms, names of rewards, and presets: kernel_coder, kevin, dr_kernel, kernel_tune",
    )
    stages: list[StageConfig] = Field(default=[], description="stages of the rewards, by measured rates; none: one")
    judge: JudgeSection | None = Field(default=None, description="what judges answers; None: nothing does")
    optim: OptimConfig = OptimConfig()
    eval: EvalConfig = EvalConfig()
    run: RunConfig = RunConfig()

    @field_validator("rewards", mode="before")
    @classmethod
    def _presets_are_their_parts(cls, value: Any) -> Any:
        """``rewards: kevin`` and ``rewards: [kevin, {name: format, weight: 0.1}]``; other text is a reward's name."""
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        if not isinstance(value, list):
            return value
        terms: list[Any] = []
        for term in value:
            if isinstance(term, str) and term in PRESETS:
                terms += [dataclasses.asdict(part) for part in PRESETS[term]]
            else:
                terms.append({"name": term} if isinstance(term, str) else term)
        return terms

    @model_validator(mode="after")
    def _sizes_fit(self) -> TrainConfig:
        size, group = self.generation_batch_size, self.rollout.num_generations
        if group == 1:
            raise ValueError(
                "rollout.num_generations is 1, so every answer is its own baseline and every advantage is 0: "
                "use 2 or more"
            )
        if size % group:
            raise ValueError(
                f"a generation batch of {size} sequences "
                "(optim.per_device_train_batch_size x optim.steps_per_generation) "
                f"does not divide into groups of rollout.num_generations = {group}"
            )
        if self.steps_per_generation % self.optim.gradient_accumulation_steps:
            raise ValueError(
                f"optim.steps_per_generation = {self.steps_per_generation} is not a multiple of "
                f"optim.gradient_accumulation_steps = {self.optim.gradient_accumulation_steps}"
            )
        if not self.rewards:
            raise ValueError("rewards is empty: name at least one, for example [{name: format}]")
        if self.run.eval_steps and not self.eval.num_tasks:
            raise ValueError("run.eval_steps is set but eval.num_tasks is 0: hold out at least one task")
        self._check_turns()
        for number, stage in enumerate(self.stages):
            last = number + 1 == len(self.stages)
            if last != (stage.until is None) or last != (stage.reaches is None):
                raise ValueError(
                    f"stages.{number}: every stage but the last needs until and reaches, and the last has neither"
                )
        return self

    def _check_turns(self) -> None:
        turns, advantages = self.rollout.max_turns, self.advantages
        if turns > 1 and self.judge is None:
            raise ValueError(
                f"rollout.max_turns is {turns}, but nothing judges the answers in between: add the section judge "
                "(judge: {} in YAML, --judge.device cpu as a flag)"
            )
        if turns > 1 and advantages.op_mode in ("batch", "reinforce_pp"):
            named = "scale_rewards batch" if advantages.op_mode == "batch" else f"mode {advantages.mode}"
            raise ValueError(f"advantages.{named} is not defined for conversations; rollout.max_turns is {turns}")
        if bool(advantages.thinking_weights) != bool(advantages.answer_weights):
            raise ValueError("advantages.thinking_weights and answer_weights come together; one of them is missing")
        if self.share_rejection.threshold is not None and self.judge is None:
            raise ValueError("share_rejection goes by the judge's profile of a GPU, and there is no section judge")

    @property
    def steps_per_generation(self) -> int:
        return self.optim.steps_per_generation or self.optim.gradient_accumulation_steps

    @property
    def generation_batch_size(self) -> int:
        return self.optim.per_device_train_batch_size * self.steps_per_generation

    @property
    def tasks_per_step(self) -> int:
        return self.generation_batch_size // self.rollout.num_generations

    @property
    def minibatches(self) -> int:
        """Updates in one pass over a generation batch."""
        return self.steps_per_generation // self.optim.gradient_accumulation_steps

    @property
    def updates_per_step(self) -> int:
        return self.minibatches * self.optim.num_iterations

    def loss_spec(self) -> Any:
        """The ``ops.LossSpec`` that the loss section describes."""
        from kernel_coder.ops import LossSpec

        given = self.loss.model_dump(exclude={"loss_type", "mask_truncated_completions"}, exclude_none=True)
        try:
            if self.loss.loss_type == "dr_grpo":
                given.setdefault("length_constant", float(self.rollout.max_completion_length))
            return LossSpec.preset(self.loss.loss_type, **given)
        except (ValueError, TypeError) as error:
            raise UsageError(f"the loss section is not a loss: {error}") from None


Config = TypeVar("Config", bound=RunnableConfig)


def load_config(path: str | Path | None, flags: list[str] | None = None) -> TrainConfig:
    """The config of a training run: :func:`load`.

    >>> load_config(None, ["--optim.learning_rate", "1e-3"]).optim.learning_rate
    0.001
    """
    return load(TrainConfig, path, flags)


def load(kind: type[Config], path: str | Path | None, flags: list[str] | None = None) -> Config:
    """The config of a YAML file (None: the defaults) with dotted flags on top; a mistake is a :class:`UsageError`."""
    values = read_recipe(path, "sections such as model and data")
    try:
        return kind.model_validate(_merge(values, _parse_flags(flags or [], kind)))
    except ValidationError as error:
        raise UsageError(_sentence(error, kind)) from None


def field_names(model: type[BaseModel] = TrainConfig, prefix: str = "") -> list[str]:
    """Every field as its dotted flag, sections included."""
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in (RewardConfig, StageConfig):
                names += field_names(kind, f"{prefix}{name}.")
    return names


def _parse_flags(flags: list[str], kind: type[BaseModel] = TrainConfig) -> dict[str, Any]:
    valid = field_names(kind)
    for flag in flags:
        name = flag[2:].partition("=")[0]
        if flag.startswith("--") and name not in (*valid, "help"):
            raise UsageError(f"unknown flag --{name}{_nearest(name, valid)}")
    command = kind.__name__.removesuffix("Config").lower()
    return flag_values(kind, flags, f"kernel-coder {command} [--config FILE] [--resume [PATH]]")


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _nearest(name: str, valid: list[str]) -> str:
    """``; did you mean ...?`` by the whole dotted name first, then by the last part of it."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.75)
    if not close:
        leaf = name.rpartition(".")[2]
        leaves = {option.rpartition(".")[2]: option for option in valid}
        close = [leaves[found] for found in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6)]
    return f"; did you mean {close[0]}?" if close else ""


def _sentence(error: ValidationError, kind: type[BaseModel]) -> str:
    errors = error.errors()
    # A required name with a typo in it is missing, too; the typo is what to mend.
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        listed: dict[Any, type[BaseModel]] = {"rewards": RewardConfig, "stages": StageConfig}
        item = listed.get(first["loc"][0])
        valid = field_names(kind) + [
            f"{first['loc'][0]}.{first['loc'][1]}.{leaf}" for leaf in (item.model_fields if item else ())
        ]
        return f"unknown key {name} in the config{_nearest(name, valid)}"
    return f"{name}: {rule(first)}" if name else rule(first)
