"""Judge two candidates for one task, from Python, on the CPU. This takes about ten seconds.

python examples/judge_from_python.py
"""

from __future__ import annotations

from pathlib import Path

from kernel_coder.judge import Judge, JudgeConfig

FOLDER = Path(__file__).parent


def main() -> None:
    """Print a line for each verdict."""
    task = (FOLDER / "relu.py").read_text(encoding="utf-8")
    candidates = {name: (FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in ("relu_kernel", "relu_copy")}
    with Judge("cpu", "triton", config=JudgeConfig(checks=3)) as judge:
        verdicts = judge.evaluate_many((task, code) for code in candidates.values())
        for name, verdict in zip(candidates, verdicts, strict=True):
            print(f"{name}: {verdict.outcome}{f', {verdict.reason}' if verdict.reason else ''}")


if __name__ == "__main__":
    main()
