"""``kernel-coder COMMAND ...``: runs one of the commands, and imports only that one."""

from __future__ import annotations

import difflib
import importlib.util
import runpy
import sys

from kernel_coder import __version__

COMMANDS = {
    "sft": "train a model on known answers (supervised)",
    "train": "train a model on rewards for its own answers (reinforcement learning)",
    "judge": "check and time candidate kernels in a sandbox",
    "evaluate": "score a model on tasks: correctness, fast_p and pass@k",
    "refine": "search for a faster, verified kernel for one module",
    "loop": "rounds of reinforcement learning, filtering and supervised training (RLoop)",
    "library": "search and export the verified kernels of earlier runs",
    "data": "make training data: build verified pairs, distill from a teacher, ...",
    "serve": "offer the judge over HTTP to other programs and hosts",
    "serve-model": "start a vLLM server that a training run samples from",
    "report": "write a web page about a training run",
    "env": "show versions, compiled parts, and how to install what is missing",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print("usage: kernel-coder COMMAND ...\n")
        print("\n".join(f"  {name:12}{text}" for name, text in COMMANDS.items()))
        print("\nkernel-coder COMMAND --help says more; kernel-coder --version prints the version.")
        return 0 if given else 2
    if given[0] == "--version":
        print(f"kernel-coder {__version__}")
        return 0
    name = given[0]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; the commands are {', '.join(COMMANDS)}"
        print(f"error: kernel-coder has no command {name}{hint}", file=sys.stderr)
        return 2
    searches = name == "evaluate" and any(flag.partition("=")[0] == "--strategy" for flag in given)
    module = "kernel_coder.refine.compare" if searches else module_of(name)  # it lies above evaluate
    if module is None:
        print(f"error: this installation has no kernel_coder.{name}", file=sys.stderr)
        return 2
    sys.argv = [f"kernel-coder {name}", *given[1:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def module_of(command: str) -> str | None:
    """Return the name of the command's module; None if it is not installed."""
    module = f"kernel_coder.{command.replace('-', '_')}"
    return module if importlib.util.find_spec(module) is not None else None


if __name__ == "__main__":
    sys.exit(main())
