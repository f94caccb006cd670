"""``kernel-coder evaluate --model M --tasks T [--config FILE] [--resume] [--nproc N] [--field value ...]``
``kernel-coder evaluate --strategy evolve,parallel --evaluations 64 ...``: see ``kernel_coder.refine.compare``

``--nproc N`` samples with N processes, one for each GPU; the first one keeps the answers and judges them.

Exit codes: 0: the evaluation is finished. 2: the config or one of its files is wrong (one sentence on stderr says how).
3: the judge failed on every answer or cannot be started. 75: SIGTERM, SIGINT or a failing server stopped the run; the
work so far is saved, and ``--resume`` continues it.
"""

from __future__ import annotations

import sys
from typing import Any

from kernel_coder.evaluate.config import COMMON_FIELDS, USAGE, EvaluateConfig, load_config
from kernel_coder.evaluate.errors import (
    EXIT_HARNESS,
    EXIT_MISTAKE,
    EXIT_STOPPED,
    HarnessFailed,
    ServerFailed,
    UsageError,
)
from kernel_coder.evaluate.help import show_help
from kernel_coder.run import distributed, launch
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.flags import FlagParser, end


def main(arguments: list[str] | None = None, **injected: Any) -> int:
    """Runs the command and returns its exit code; ``injected`` goes to :func:`kernel_coder.evaluate.run.evaluate`."""
    given = sys.argv[1:] if arguments is None else arguments
    if any(flag.partition("=")[0] == "--strategy" for flag in given):
        return end("--strategy belongs to the command itself: kernel-coder evaluate --strategy ...", EXIT_MISTAKE)
    if show_help(given, USAGE, EvaluateConfig, COMMON_FIELDS):
        return 0
    parser = FlagParser(add_help=False)
    parser.add_argument("--config")
    parser.add_argument("--resume", action="store_true")
    try:
        own, flags = parser.parse_known_args(given)
        count, flags = launch.nproc_of(flags)
        config = load_config(own.config, flags)
        others = launch.nproc_of(given)[1]
        if (code := launch.launched("kernel_coder.evaluate", others, count)) is not None:
            return code

        from kernel_coder.evaluate.run import evaluate  # imports torch, which takes seconds: parse the flags first
        from kernel_coder.evaluate.store import REPORT, TABLE
        from kernel_coder.run.signals import listening

        with distributed.joined() as world, listening() as stop:
            if world.is_alone:
                results = evaluate(config, resume=own.resume, poll=stop.poll, **injected)
            else:
                from kernel_coder.evaluate.divided import END, DividedModel, help_first, tell

                if config.base_url is not None:
                    raise UsageError("--base-url needs one process: its server answers many requests at once")
                if not world.is_first:
                    help_first(config)
                    return 0
                try:
                    resume = own.resume or launch.restarted()
                    results = evaluate(config, resume=resume, poll=stop.poll_alone, make_model=DividedModel, **injected)
                finally:
                    tell(END)
        print((results.folder / TABLE).read_text(encoding="utf-8"))
        print(f"open {(results.folder / REPORT).resolve()} in a browser to read the answers and verdicts")
        print(f"next: kernel-coder refine MODULE.py --model {config.model}")
        return 0
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except HarnessFailed as error:
        return end(error, EXIT_HARNESS)
    except ServerFailed as error:
        return end(f"{error}; its answers so far are saved in {config.output}: continue with --resume", EXIT_STOPPED)
    except StopRequested as error:
        return end(
            f"stopped by {error}; the work so far is saved in {config.output}: continue with --resume", EXIT_STOPPED
        )


if __name__ == "__main__":
    distributed.end_process(main())
