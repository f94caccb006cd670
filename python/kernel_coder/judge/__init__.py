"""The judge: whether a candidate does what the reference does, and how fast, in a verdict that can be reproduced."""

from kernel_coder.judge.verdict import MAX_FEEDBACK, PROTOCOL, Outcome, OutputError, Verdict, example_verdict

__all__ = ["MAX_FEEDBACK", "PROTOCOL", "Outcome", "OutputError", "Verdict", "example_verdict"]
