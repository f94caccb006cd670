"""The judge: whether a candidate computes what the reference computes, and how fast. Verdicts can be repeated."""

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.verdict import MAX_FEEDBACK, PROTOCOL, Outcome, OutputError, Verdict, example_verdict

__all__ = [
    "MAX_FEEDBACK",
    "PROTOCOL",
    "Admission",
    "Judge",
    "JudgeConfig",
    "JudgePool",
    "Outcome",
    "OutputError",
    "Verdict",
    "example_verdict",
    "open_judge",
]


def __getattr__(name: str) -> object:
    """Import what needs the sandbox only when it is used: rewards need nothing but verdicts."""
    if name == "Admission":
        from kernel_coder.judge.supervisor import admission

        return admission.Admission
    if name == "Judge":
        from kernel_coder.judge.supervisor import judge

        return judge.Judge
    if name in ("JudgePool", "open_judge"):
        from kernel_coder.judge.supervisor import pool

        return getattr(pool, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
