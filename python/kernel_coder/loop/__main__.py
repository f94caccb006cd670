"""``python -m kernel_coder.loop [--config FILE] [--resume] [--section.field value ...]``

Exit codes: 0: all rounds are finished. 2: a mistake in the config or its files (one sentence on stderr). 3: the judge
never worked, or too many updates in a row were skipped. 75: SIGTERM or SIGINT stopped the loop; ``--resume`` continues
it.
"""

from __future__ import annotations

import argparse
import sys

from kernel_coder.evaluate.errors import EXIT_HARNESS, HarnessFailed
from kernel_coder.loop.config import load_config
from kernel_coder.run.errors import EXIT_DIVERGED, EXIT_MISTAKE, EXIT_STOPPED, TrainingDiverged, UsageError
from kernel_coder.run.flags import end


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--resume", action="store_true")
    own, flags = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    try:
        config = load_config(own.config, flags)

        from kernel_coder.loop.rounds import Loop  # imports torch, which takes seconds: parse the flags first

        loop = Loop(config, lambda line: print(line, flush=True))
        loop.open(own.resume)
        status = loop.run()
        print(f"open {(loop.folder / 'report.html').resolve()} in a browser")
        return EXIT_STOPPED if status == "stopped" else 0
    except UsageError as error:
        return end(error, EXIT_MISTAKE)
    except HarnessFailed as error:
        return end(error, EXIT_HARNESS)
    except TrainingDiverged as error:
        return end(error, EXIT_DIVERGED)


if __name__ == "__main__":
    sys.exit(main())
