"""The config of a supervised run. Field names are those of TRL's SFTConfig where the meaning is the same."""

from __future__ import annotations

from pydantic import Field, model_validator

from kernel_coder.policy.config import ModelConfig
from kernel_coder.run.config import AdamConfig, ParallelConfig, RunConfig, RunnableConfig
from kernel_coder.train.config import DataConfig, EvalConfig, JudgeSection


class SftModelConfig(ModelConfig):
    """Which model is trained, how it is loaded, and whether it is compiled."""

    torch_compile: bool = Field(
        default=False,
        description="compile the decoder's layers and, on a GPU, record CUDA graphs; if that fails, train without. "
        "Every forward pass is then padded to one shape, whose memory the graphs hold",
    )


class SftDataConfig(DataConfig):
    """The data to learn: the solutions of tasks, or a table with messages, with prompt and completion, or with text."""

    max_length: int = Field(
        default=1024,
        ge=2,
        description="length of a packed sequence in tokens; longer examples are dropped, longer texts are divided",
    )
    packing: bool = Field(
        default=True, description="put several examples into one sequence, without attention between them; false: one"
    )
    assistant_only_loss: bool = Field(
        default=True, description="the loss is over answers only; false: over every token, as in pretraining"
    )
    thinking: str = Field(
        default="", description="text between the thinking tags of answers whose row has no column thinking"
    )


class SftOptimConfig(AdamConfig):
    """The optimiser, its schedule, and the number of packed sequences in an update."""

    learning_rate: float = Field(default=2e-5, ge=0, description="peak learning rate")


class SftEvalConfig(EvalConfig):
    """Evaluation on held-out tasks: the loss of the known answers to all of them, and new answers to some."""

    num_answered: int = Field(
        default=0,
        ge=0,
        description="held-out tasks that the model answers; the answers are judged if judge is set; 0: none",
    )
    max_completion_length: int = Field(default=256, ge=1, description="length limit of these answers, in tokens")
    batch_size: int | None = Field(default=None, ge=1, description="answers that are sampled at once; none: all")


class SftRunConfig(RunConfig):
    """What a run writes, how often, and how long it lasts."""

    output_dir: str = Field(default="runs/sft", description="folder for checkpoints, metrics and logs")
    max_steps: int = Field(default=-1, ge=-1, description="updates of the run; -1: as many as num_train_epochs takes")
    num_train_epochs: float = Field(default=3.0, gt=0, description="passes over the data; used if max_steps is -1")


class SftConfig(RunnableConfig):
    """The config of a supervised run."""

    model: SftModelConfig = SftModelConfig()
    data: SftDataConfig = SftDataConfig()
    optim: SftOptimConfig = SftOptimConfig()
    eval: SftEvalConfig = SftEvalConfig()
    judge: JudgeSection | None = Field(
        default=None, description="the judge of the answers to held-out tasks; none: they are not judged"
    )
    parallel: ParallelConfig = ParallelConfig()
    run: SftRunConfig = SftRunConfig()

    @model_validator(mode="after")
    def _is_consistent(self) -> SftConfig:
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
            raise ValueError(
                "model.torch_compile needs data.packing, because without it every sequence has its own shape"
            )
        return self

    @property
    def packs_per_step(self) -> int:
        """Packed sequences in an update, which is one step."""
        return self.optim.per_device_train_batch_size * self.optim.gradient_accumulation_steps
