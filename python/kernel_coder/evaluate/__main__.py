"""``python -m kernel_coder.evaluate --model M --tasks T [--config FILE] [--resume] [--field value ...]``

Exit codes: 0 the evaluation is finished; 2 something in the config or its files is wrong (one sentence on stderr);
3 the judge itself failed on every answer, or cannot be started; 75 stopped by SIGTERM or SIGINT, or by a server that
gives no more answers: everything so far is saved, go on with ``--resume``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kernel_coder.evaluate.config import load_config
from kernel_coder.evaluate.errors import (
    EXIT_HARNESS,
    EXIT_MISTAKE,
    EXIT_STOPPED,
    HarnessFailed,
    ServerFailed,
    UsageError,
)
from kernel_coder.run.errors import StopRequested
from kernel_coder.run.flags import end


def main(arguments: list[str] | None = None, **injected: Any) -> int:
    """Runs the command and returns its exit code; ``injected`` is for :func:`kernel_coder.evaluate.run.evaluate`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--resume", action="store_true")
    own, flags = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    try:
        config = load_config(own.config, flags)

        from kernel_coder.evaluate.run import evaluate  # torch takes seconds; a typo should not
        from kernel_coder.evaluate.store import SUMMARY, TABLE
        from kernel_coder.run.signals import listening

        with listening() as stop:
            results = evaluate(config, resume=own.resume, poll=stop.poll, **injected)
        print((results.folder / TABLE).read_text(encoding="utf-8"))
        print((results.folder / SUMMARY).resolve())
        return 0
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except HarnessFailed as error:
        return end(error, EXIT_HARNESS)
    except ServerFailed as error:
        return end(f"{error}; what it did answer is saved in {config.output}: go on with --resume", EXIT_STOPPED)
    except StopRequested as error:
        return end(
            f"stopped by {error}; the work so far is saved in {config.output}: go on with --resume", EXIT_STOPPED
        )


if __name__ == "__main__":
    sys.exit(main())
