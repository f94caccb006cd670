"""The one description of a supervised run. Leaf names are those of TRL's SFTConfig where the meaning is the same."""

from __future__ import annotations

from pydantic import Field, model_validator

from kernel_coder.train.config import (
    AdamConfig,
    DataConfig,
    EvalConfig,
    JudgeSection,
    ModelConfig,
    RunConfig,
    RunnableConfig,
)


class SftModelConfig(ModelConfig):
    """Which model is trained."""

    torch_compile: bool = Field(
        default=False,
        description="compile the decoder's layers and, on a GPU, record CUDA graphs, if that works; every forward pass "
        "then has one shape, and the graphs hold its memory",
    )


class SftDataConfig(DataConfig):
    """Which answers are learnt: solutions of tasks, or a table with messages, prompt and completion, or text."""

    max_length: int = Field(
        default=1024, ge=2, description="tokens of a packed sequence; a longer example is dropped, a longer text is cut"
    )
    packing: bool = Field(default=True, description="several examples in a sequence, none of which sees another")
    assistant_only_loss: bool = Field(
        default=True, description="learn answers only; false: every token, as in pretraining"
    )
    thinking: str = Field(default="", description="what stands between the thinking tags where a row has none itself")


class SftOptimConfig(AdamConfig):
    """The optimiser, its schedule, and how many packed sequences an update takes."""

    learning_rate: float = Field(default=2e-5, ge=0)


class SftEvalConfig(EvalConfig):
    """Evaluation on tasks that are never trained on: loss on all of them, answers to some."""

    num_answered: int = Field(
        default=0, ge=0, description="held-out tasks that are answered, and judged if judge is set"
    )
    max_completion_length: int = Field(default=256, ge=1)
    batch_size: int | None = Field(default=None, ge=1, description="sequences sampled at once; default: all")


class SftRunConfig(RunConfig):
    """What is written, when, and how long the run lasts."""

    output_dir: str = "runs/sft"
    max_steps: int = Field(default=-1, ge=-1, description="updates; -1: num_train_epochs decides")
    num_train_epochs: float = Field(default=3.0, gt=0)


class SftConfig(RunnableConfig):
    """Every choice of a supervised run."""

    model: SftModelConfig = SftModelConfig()
    data: SftDataConfig = SftDataConfig()
    optim: SftOptimConfig = SftOptimConfig()
    eval: SftEvalConfig = SftEvalConfig()
    judge: JudgeSection | None = Field(default=None, description="what judges held-out answers; None: nothing does")
    run: SftRunConfig = SftRunConfig()

    @model_validator(mode="after")
    def _sizes_fit(self) -> SftConfig:
        if self.run.max_steps == 0:
            raise ValueError("run.max_steps is 0: give a number of updates, or -1 to let run.num_train_epochs decide")
        if self.run.eval_steps and not self.eval.num_tasks:
            raise ValueError("run.eval_steps is set but eval.num_tasks is 0: hold out at least one task")
        if self.eval.num_answered > self.eval.num_tasks:
            raise ValueError(
                f"eval.num_answered = {self.eval.num_answered} is more than eval.num_tasks = {self.eval.num_tasks}: "
                "only held-out tasks are answered"
            )
        if self.judge is not None and not self.eval.num_answered:
            raise ValueError("there is a judge but eval.num_answered is 0: let some held-out tasks be answered")
        if self.model.torch_compile and not self.data.packing:
            raise ValueError("model.torch_compile needs data.packing, for without it every sequence has its own shape")
        return self

    @property
    def packs_per_step(self) -> int:
        """Packed sequences in an update."""
        return self.optim.per_device_train_batch_size * self.optim.gradient_accumulation_steps
