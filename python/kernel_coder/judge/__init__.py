"""The judge decides whether a candidate computes what the reference computes, and measures how fast it is."""

import importlib

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.verdict import MAX_FEEDBACK, PROTOCOL, Outcome, OutputError, Verdict, example_verdict

__all__ = [
    "MAX_FEEDBACK",
    "PROTOCOL",
    "Admission",
    "AsyncClient",
    "Client",
    "Judge",
    "JudgeConfig",
    "JudgePool",
    "Outcome",
    "OutputError",
    "RayJudge",
    "Verdict",
    "example_verdict",
    "open_judge",
]

_HOMES = {
    "Admission": "admission",
    "AsyncClient": "client",
    "Client": "client",
    "Judge": "judge",
    "JudgePool": "pool",
    "RayJudge": "ray_pool",
    "open_judge": "open",
}


def __getattr__(name: str) -> object:
    """Import what needs the sandbox only when it is used, because rewards need only verdicts."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"kernel_coder.judge.supervisor.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
