"""The judge: whether a candidate does what the reference does, and how fast, in a verdict that can be reproduced."""

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
    """Judge and Admission on demand: rewards on verdicts need no sandbox."""
    if name in ("Judge", "Admission"):
        from kernel_coder.judge.supervisor import judge

        return getattr(judge, name)
    if name in ("JudgePool", "open_judge"):
        from kernel_coder.judge.supervisor import pool

        return getattr(pool, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
