"""The config of a training run.

Field names and defaults are those of TRL where the meaning is the same.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.batching import check_address, devices_of, is_remote
from kernel_coder.policy.config import ModelConfig
from kernel_coder.rewards import PRESETS
from kernel_coder.rollout.vllm.config import VllmConfig
from kernel_coder.run.config import AdamConfig, ParallelConfig, RunConfig, RunnableConfig, Section, load
from kernel_coder.run.errors import UsageError

LAG_RATIO_MAX = 2.0
"""Upper limit of the probability ratio that corrects for answers written with earlier weights; most trainers use this
limit for truncated importance sampling. With a larger one single tokens could dominate the gradient."""


class DataConfig(Section):
    """The tasks to train on, and the prompts made from them."""

    path: str = Field(
        default="packaged",
        description="tasks to train on: packaged, packaged:<set> (such as packaged:generated), a hub data set, a "
        "parquet or JSONL file, or a folder of Python files",
    )
    revision: str | None = Field(
        default=None, description="commit, branch or tag of a hub data set; none: its default branch"
    )
    split: str | None = Field(default=None, description="split of a hub data set; none: train (of KernelBench level_1)")
    format: str = Field(
        default="auto",
        description="columns of a table: kernelbook, kernelbench, or auto (by their names); python: files of a folder",
    )
    families: list[str] | None = Field(
        default=None, description="use only tasks of these families (column family); none: all"
    )
    exclude_families: list[str] | None = Field(
        default=None,
        description="leave out tasks of these families, both for training and for evaluation; none: no task",
    )
    max_level: int | None = Field(
        default=None, ge=0, description="leave out harder tasks (column level); none: all levels"
    )
    limit: int | None = Field(default=None, ge=1, description="use only this many tasks, the first ones; none: all")
    num_proc: int = Field(default=1, ge=1, description="processes that read a parquet file, and that encode its pairs")
    shuffle: bool = Field(
        default=True, description="a new order of the tasks in every epoch; false: always that of the data"
    )
    prompt_template: str = Field(
        default="kernel_coder", description="prompt template: kernel_coder, kernelbench, nano, bare, or a .jinja file"
    )
    one_shot: bool = Field(default=False, description="show a solved example before the task")
    max_prompt_length: int | None = Field(
        default=None,
        ge=1,
        description="leave out tasks with a longer prompt, in tokens; none: a prompt that does not fit is an error",
    )


class RolloutConfig(Section):
    """How answers are sampled, and how conversations of several turns proceed."""

    engine: Literal["auto", "static", "transformers", "vllm"] = Field(
        default="auto",
        description="generation engine: static (fixed-size cache and CUDA graphs; Llama and Qwen2 models), "
        "transformers (any model), vllm (a server, see section vllm), or auto (static on a GPU for models that it "
        "supports)",
    )
    num_generations: int = Field(
        default=8, ge=1, description="answers to each prompt, which form a group; TRL's name for the group size"
    )
    max_completion_length: int = Field(default=256, ge=1, description="longest answer, in tokens; longer ones are cut")
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="sample from the most likely tokens with this total probability; 1: from all",
    )
    top_k: int = Field(default=0, ge=0, description="sample from this many most likely tokens; 0: from all")
    lag: int = Field(
        default=0,
        ge=0,
        description="steps that sampling is ahead of learning: answers are written with the weights from that many "
        "steps ago, while earlier answers are judged and learnt from. 0: each step waits for its own answers",
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        description="answers that are sampled at once; none: all of a step, or half of them if max_turns is more than "
        "1",
    )
    max_resampling_rounds: int = Field(
        default=0,
        ge=0,
        description="dynamic sampling (DAPO): rounds in which groups with equal rewards are replaced by groups of "
        "further tasks; 0: such groups stay and carry no gradient",
    )
    max_turns: int = Field(
        default=1, ge=1, description="answers in a conversation; each further one follows the verdict on the one before"
    )
    stop_when_correct: bool = Field(
        default=False, description="end a conversation at its first correct answer; false: continue up to max_turns"
    )
    feedback_template: str = Field(
        default="feedback", description="template of the message after a verdict: feedback, nano, or a .jinja file"
    )
    context: Literal["all", "last", "best"] = Field(
        default="all",
        description="earlier turns in the next prompt: all, or only the last or best context_turns of them",
    )
    context_turns: int = Field(default=1, ge=1, description="number of earlier turns that context last or best shows")
    earlier_reasoning: Literal["keep", "summary", "drop"] = Field(
        default="keep",
        description="reasoning of earlier answers in the next prompt: keep it (the tokens stay as sampled), keep only "
        "its last paragraph (summary), or drop it",
    )
    fixed_batches: bool = Field(
        default=True,
        description="form batches independently of how long verdicts take, which gives equal bits in every run; false: "
        "start each next turn as soon as its verdict is there, which is faster",
    )

    @model_validator(mode="after")
    def _vllm_samples_from_all_tokens(self) -> RolloutConfig:
        if self.engine == "vllm" and (self.top_p != 1 or self.top_k):
            raise ValueError(
                "engine vllm gives the log-probs of the distribution after a cut, and training needs those before: "
                f"top_p must be 1 and top_k 0; got {self.top_p:g} and {self.top_k}"
            )
        return self

    @model_validator(mode="after")
    def _lag_is_possible(self) -> RolloutConfig:
        if self.lag and self.max_resampling_rounds:
            raise ValueError(
                f"lag {self.lag} samples the next tasks before this step's verdicts are known, and "
                f"max_resampling_rounds {self.max_resampling_rounds} needs them first: set one of the two to 0"
            )
        return self

    def batch_size_of(self, rollouts: int) -> int:
        """Return the number of rollouts in a batch. With several turns, one half is sampled while the other is
        judged."""
        return self.batch_size or (max(rollouts, 1) if self.max_turns == 1 else -(-rollouts // 2) or 1)


class SamplerConfig(Section):
    """Which tasks a step draws."""

    kind: Literal["epochs", "success"] = Field(
        default="epochs",
        description="epochs: every task once in each epoch; success: by chance, with weight p (1 - p) + floor for a "
        "task with measured success rate p, so mostly tasks that are solved sometimes",
    )
    floor: float = Field(
        default=0.05, gt=0, description="smallest weight of a task under kind success, that of tasks with p = 0 or 1"
    )
    decay: float = Field(
        default=0.7, ge=0, lt=1, description="weight of the past in the moving averages of measured rates; 0: none"
    )
    success_reward: float = Field(
        default=1.0, description="total reward from which an answer counts as solved; used only without a judge"
    )
    max_level: int | None = Field(
        default=None, ge=0, description="hardest level (column level) to start with; none: all levels from the start"
    )
    level_up_at: float = Field(
        default=0.6, gt=0, le=1, description="success rate at the hardest level from which the next level is added"
    )
    level_up_after: int = Field(
        default=64, ge=1, description="answers at the hardest level that are needed before the next level is added"
    )


class AdvantagesConfig(Section):
    """How rewards become advantages."""

    mode: Literal["grpo", "rloo", "trloo", "loo_std", "reinforce_pp", "maxrl"] = Field(
        default="grpo",
        description="baseline and scale, as in ops.group_advantages; trloo is rloo that keeps the return of a turn "
        "with nothing to compare it with, where rloo gives 0",
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group",
        description="mode grpo divides by the standard deviation of the group, of the whole batch, or not at all",
    )
    eps: float | None = Field(
        default=None, ge=0, description="added to that standard deviation; none: 1e-4, or the value of the mode's paper"
    )
    gamma: float = Field(
        default=1.0, ge=0, description="weight of the next turn's return in a turn's own; Kevin uses 0.4"
    )
    turn_returns: Literal["sum", "max", "last", "per_turn"] = Field(
        default="sum",
        description="return of a turn: the sum or maximum of its own and later rewards, the last reward, or only its "
        "own",
    )
    baseline: Literal["turn", "group"] = Field(
        default="turn",
        description="compare a turn with the same turn of the group's other conversations, or with all of their turns",
    )
    thinking_weights: dict[str, float] = Field(
        default={},
        description="reward weights for the tokens of the reasoning, as factors by label; empty: as for the answer",
    )
    answer_weights: dict[str, float] = Field(
        default={}, description="reward weights for the tokens of the answer; only together with thinking_weights"
    )

    @model_validator(mode="after")
    def _only_grpo_scales(self) -> AdvantagesConfig:
        if self.mode != "grpo" and self.scale_rewards != "group":
            raise ValueError(f"scale_rewards applies to mode grpo only; got {self.scale_rewards} with {self.mode}")
        return self

    @property
    def op_mode(self) -> str:
        """The name of the mode in ``ops.group_advantages``."""
        if self.mode == "grpo":
            return {"group": "grpo", "batch": "batch", "none": "dr_grpo"}[self.scale_rewards]
        return "rloo" if self.mode == "trloo" else self.mode

    @property
    def op_singleton(self) -> str:
        """The name in ``ops.turn_advantages`` of what a turn gets that has nothing to be compared with."""
        return "reward" if self.mode == "trloo" else "zero"


class ShareRejectionConfig(Section):
    """Leaves correct answers out of the loss, at random, if their own kernels take little of the device time (Dr.
    Kernel).

    An answer with kernel share s stays with probability (s - threshold) / width, limited to [0, 1]. The share comes
    from the judge's profile, so the judge must work on a GPU.
    """

    threshold: float | None = Field(
        default=None, ge=0, le=1, description="kernel share up to which no answer stays; Dr. Kernel uses 0.3; none: off"
    )
    width: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="width of the range of kernel shares above threshold in which chance decides",
    )
    keep_from_speedup: float | None = Field(
        default=None, gt=0, description="answers with at least this speedup stay in any case; none: no exception"
    )


def _or_preset(description: str, *, ge: float | None = None, gt: float | None = None) -> Any:
    """Return a field of :class:`LossConfig` that keeps the preset's value unless it is set."""
    return Field(default=None, description=f"{description}; none: as in the preset", ge=ge, gt=gt)


class LossConfig(Section):
    """The policy loss: a preset, and single fields of ``ops.LossSpec`` that replace the preset's."""

    loss_type: str = Field(
        default="dapo", description="preset of ops.LossSpec: grpo, dr_grpo, dapo, gspo, cispo, ...; it fills all fields"
    )
    surrogate: str | None = _or_preset("objective of a token: clip, cispo, cispo_two_sided, gmpo, dppo, sapo, ...")
    importance_sampling_level: str | None = _or_preset(
        "ratio of each token or of its sequence: token, sequence, sequence_token or sequence_sum"
    )
    reduction: str | None = _or_preset(
        "how tokens are averaged: token_mean, sequence_mean, sequence_mean_token_sum or sum"
    )
    length_constant: float | None = Field(
        default=None, gt=0, description="divisor of dr_grpo, in tokens; none: rollout.max_completion_length"
    )
    epsilon: float | None = _or_preset("lower clip range of the ratio, as a distance from 1", ge=0)
    epsilon_high: float | None = _or_preset(
        "upper clip range of the ratio, as a distance from 1; of cispo the largest ratio itself", ge=0
    )
    delta: float | None = _or_preset("largest ratio, whatever the sign of the advantage (two-sided clipping)", gt=0)
    dual_clip: float | None = _or_preset("for a negative advantage A the loss is at most -dual_clip A", gt=0)
    log_ratio_clamp: float | None = _or_preset("largest absolute log-ratio; beyond it there is no gradient")
    ratio_penalty: float | None = _or_preset("weight of a penalty on the squared log-ratio; 0 is none")
    ratio_to_rollout: bool | None = _or_preset(
        "true: the ratio is to the sampler's log-probs; false: to those of the policy before the update"
    )
    sapo_temperature_pos: float | None = _or_preset("sapo: temperature for positive advantages")
    sapo_temperature_neg: float | None = _or_preset("sapo: temperature for negative advantages")
    vespo_k_pos: float | None = _or_preset("vespo: exponent k for positive advantages")
    vespo_lambda_pos: float | None = _or_preset("vespo: lambda for positive advantages")
    vespo_k_neg: float | None = _or_preset("vespo: exponent k for negative advantages")
    vespo_lambda_neg: float | None = _or_preset("vespo: lambda for negative advantages")
    beta: float | None = _or_preset("weight of the KL to the initial model; 0 needs no reference model", ge=0)
    kl_estimator: str | None = _or_preset("estimator of that KL: k1, k2 or k3")
    use_bias_correction_kl: bool | None = _or_preset("true: multiply the KL of a token by its ratio (DeepSeek-V3.2)")
    kl_input_clamp: float | None = _or_preset("largest absolute log-ratio to the reference that enters the KL")
    kl_output_clamp: float | None = _or_preset("largest absolute KL of a token")
    entropy_coef: float | None = _or_preset("weight of the entropy bonus; 0 is none")
    mismatch: str | None = _or_preset(
        "correction for a sampler that differs from the trained model: none, token_truncate, token_mask, "
        "sequence_truncate, sequence_mask, geometric or geometric_mask"
    )
    mismatch_min: float | None = _or_preset("lower bound of the correction")
    mismatch_max: float | None = _or_preset("upper bound of the correction")
    missing_rollout: str | None = _or_preset(
        "correction of a token whose log-prob the sampler did not give: ratio_one or weight_zero"
    )
    token_veto: float | None = _or_preset(
        "remove a sequence from the loss if the trainer-to-sampler probability ratio of one token is smaller; 0 is off"
    )
    off_policy_mask_threshold: float | None = _or_preset(
        "remove tokens with a negative advantage if the mean sampler-to-policy log-ratio of their sequence is larger"
    )
    mask_truncated_completions: bool = Field(
        default=False,
        description="leave answers that max_completion_length cut out of the loss; their rewards stay in the baseline",
    )


class RewardConfig(Section):
    """One term of the reward."""

    name: str = Field(description="name of a reward, such as format or similarity, or package.module:function")
    weight: float = Field(default=1.0, description="factor of this term in the total reward")
    params: dict[str, Any] = Field(default={}, description="arguments of the reward function")
    schedule: Any = Field(
        default=None, description="weight as a function of the step, see rewards.Schedule; none: it is constant"
    )
    required: bool = Field(
        default=False,
        description="an answer that this reward cannot score has no total reward; false: its term is left out",
    )
    label: str | None = Field(
        default=None, description="name in logs and tables; none: the name or the function's name"
    )


class StageConfig(Section):
    """A stage of training with its own reward weights, and the condition that ends it."""

    weights: dict[str, float] = Field(
        min_length=1,
        description="factors of the rewards' weights in this stage, by label; other rewards are only logged",
    )
    until: str | None = Field(default=None, description="metric that ends the stage, such as judge/compiled")
    reaches: float | None = Field(default=None, description="value of its moving average at which the stage ends")
    min_steps: int = Field(default=1, ge=1, description="shortest duration of the stage, in steps")


class JudgeSection(JudgeConfig):
    """The judge whose verdicts the rewards use: where it works, and all fields of ``judge.JudgeConfig``."""

    device: str = Field(
        default="auto",
        description="device of the judge: cpu, cuda, cuda:N, several such as cuda:1,cuda:2, or auto (a GPU if there is "
        "one)",
    )
    url: str | None = Field(
        default=None,
        description="address of a judge service to ask instead, such as http://127.0.0.1:8400 (kernel-coder serve)",
    )
    cluster: str | None = Field(
        default=None,
        description="Ray cluster whose machines judge instead: ray://auto, ray://local or ray://HOST:PORT, with "
        "?device=cuda for its GPUs",
    )
    backend: Literal["triton", "cuda", "cpp", "torch"] | None = Field(
        default=None, description="language of the answers; none: that of each task"
    )
    remember: bool = Field(
        default=False, description="judge equal code for a task once in the whole run; false: once in each step"
    )

    @field_validator("device")
    @classmethod
    def _device_is_valid(cls, value: str) -> str:
        try:
            if is_remote(value):
                raise ValueError(f"must be a device; url and cluster take addresses; got {value}")
            value == "auto" or devices_of(value)
        except ValueError as error:
            raise ValueError(str(error).replace("device must be cpu", "must be auto, cpu")) from None
        return value

    @model_validator(mode="after")
    def _addresses_are_valid(self) -> JudgeSection:
        check_address(self.url, "url", ("http://", "https://"))
        check_address(self.cluster, "cluster", ("ray://",))
        if self.url is not None and self.cluster is not None:
            raise ValueError(f"only one of url and cluster may be given; got {self.url} and {self.cluster}")
        return self

    @property
    def place(self) -> str:
        """Where the judge works: the address of a service or a cluster, if there is one, or else its device."""
        return self.url or self.cluster or self.device

    def judge_config(self) -> JudgeConfig:
        """Return the fields that belong to the judge's own config. Fields that were set explicitly stay marked as
        set."""
        own = {"device", "url", "cluster", "backend", "remember"}
        return JudgeConfig.model_validate(self.model_dump(include=self.model_fields_set - own))


class OptimConfig(AdamConfig):
    """The optimiser, and how a generation batch is divided into updates and forward passes."""

    steps_per_generation: int | None = Field(
        default=None,
        ge=1,
        description="forward passes over a generation batch, which sets its size; none: gradient_accumulation_steps, "
        "so that a batch gives one update",
    )
    num_iterations: int = Field(default=1, ge=1, description="times that each generation batch is trained on")
    packing: bool = Field(
        default=True, description="put the sequences of a forward pass into one row without padding; false: pad them"
    )
    share_prompts: bool = Field(
        default=True, description="with packing, compute a prompt once for all its answers in a forward pass"
    )


class EvalConfig(Section):
    """Evaluation on held-out tasks, which are never trained on."""

    path: str | None = Field(
        default=None, description="data set of held-out tasks; none: num_tasks tasks are taken out of data.path"
    )
    num_tasks: int = Field(
        default=0, ge=0, description="number of held-out tasks, chosen by a hash of their id; 0: no evaluation"
    )
    num_generations: int = Field(default=1, ge=1, description="answers to each held-out task")
    temperature: float = Field(default=0.0, ge=0, description="sampling temperature; 0: always the most likely token")


class TrainConfig(RunnableConfig):
    """The config of a training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    vllm: VllmConfig = VllmConfig()
    sampler: SamplerConfig = SamplerConfig()
    advantages: AdvantagesConfig = AdvantagesConfig()
    loss: LossConfig = LossConfig()
    share_rejection: ShareRejectionConfig = ShareRejectionConfig()
    rewards: list[RewardConfig] = Field(
        default=[RewardConfig(name="format"), RewardConfig(name="similarity")],
        description="terms of the reward: names, presets (kernel_coder, kevin, dr_kernel, kernel_tune), or mappings "
        "with name, weight, params, ...",
    )
    stages: list[StageConfig] = Field(
        default=[], description="stages with different reward weights, one after the other; empty: one stage"
    )
    judge: JudgeSection | None = Field(
        default=None, description="the judge that compiles, checks and times answers; none: rewards see only the text"
    )
    optim: OptimConfig = OptimConfig()
    eval: EvalConfig = EvalConfig()
    parallel: ParallelConfig = ParallelConfig()
    run: RunConfig = RunConfig()

    @field_validator("rewards", mode="before")
    @classmethod
    def _presets_are_their_parts(cls, value: Any) -> Any:
        """Accepts ``kevin`` and ``[kevin, {name: format, weight: 0.1}]``. Text that is no preset is a reward's name."""
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
    def _is_consistent(self) -> TrainConfig:
        self._check_sizes()
        self._check_turns()
        if self.rollout.lag and self.vllm.sleep:
            raise ValueError(
                "vllm.sleep frees the server's memory while the run learns, and the run samples then with rollout.lag "
                f"{self.rollout.lag}: set one of the two to false or 0"
            )
        for number, stage in enumerate(self.stages):
            last = number + 1 == len(self.stages)
            if last != (stage.until is None) or last != (stage.reaches is None):
                raise ValueError(
                    f"stages.{number}: every stage but the last needs until and reaches, and the last has neither"
                )
        return self

    def _check_sizes(self) -> None:
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
            raise ValueError("share_rejection needs the judge's profile of a GPU, and there is no section judge")

    @property
    def steps_per_generation(self) -> int:
        """Forward passes in one pass over a generation batch."""
        return self.optim.steps_per_generation or self.optim.gradient_accumulation_steps

    @property
    def generation_batch_size(self) -> int:
        """Answers that a step samples."""
        return self.optim.per_device_train_batch_size * self.steps_per_generation

    @property
    def tasks_per_step(self) -> int:
        """Tasks, and so groups of answers, of a step."""
        return self.generation_batch_size // self.rollout.num_generations

    @property
    def minibatches(self) -> int:
        """Updates in one pass over a generation batch."""
        return self.steps_per_generation // self.optim.gradient_accumulation_steps

    @property
    def updates_per_step(self) -> int:
        """Updates in all passes over a generation batch."""
        return self.minibatches * self.optim.num_iterations

    def loss_spec(self) -> Any:
        """Return the ``ops.LossSpec`` that the loss section describes."""
        from kernel_coder.ops import LossSpec

        given = self.loss.model_dump(exclude={"loss_type", "mask_truncated_completions"}, exclude_none=True)
        try:
            if self.loss.loss_type == "dr_grpo":
                given.setdefault("length_constant", float(self.rollout.max_completion_length))
            if self.rollout.lag and not given.keys() & {"mismatch", "ratio_to_rollout"}:
                given |= self._mismatch_of_lag()
            return LossSpec.preset(self.loss.loss_type, **given)
        except (ValueError, TypeError) as error:
            raise UsageError(f"the loss section is not a loss: {error}") from None

    def _mismatch_of_lag(self) -> dict[str, Any]:
        """Return the correction for answers written with earlier weights; empty if the preset already has one.

        The gradient of a token is multiplied by the probability ratio of the present weights to those earlier ones, at
        most :data:`LAG_RATIO_MAX`.
        """
        from kernel_coder.ops import LossSpec

        preset = LossSpec.preset(self.loss.loss_type)
        if preset.mismatch != "none" or preset.ratio_to_rollout or preset.surrogate == "vespo":
            return {}
        return {"mismatch": "token_truncate", "mismatch_max": LAG_RATIO_MAX}


def load_config(path: str | Path | None, flags: list[str] | None = None) -> TrainConfig:
    """Return the config of a training run from a YAML file (None: only defaults) and dotted flags, which override the
    file.

    >>> load_config(None, ["--optim.learning_rate", "1e-3"]).optim.learning_rate
    0.001
    """
    return load(TrainConfig, path, flags)
