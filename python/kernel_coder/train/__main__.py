"""``python -m kernel_coder.train [--config FILE] [--resume [PATH]] [--section.field value ...]``

Exit codes: 0 the run is finished; 2 something in the config or its files is wrong (one sentence on stderr);
3 too many updates in a row were not finite; 75 stopped by SIGTERM or SIGINT after saving, go on with ``--resume``.
A second SIGINT ends the process at once with 130.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kernel_coder.rewards import RewardError
from kernel_coder.train.config import load_config
from kernel_coder.train.errors import EXIT_DIVERGED, EXIT_MISTAKE, EXIT_STOPPED, TrainingDiverged, UsageError


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--resume", nargs="?", const="auto")
    own, flags = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    try:
        config_path, resume = own.config, own.resume
        if resume not in (None, "auto"):
            run_dir, resume = _run_and_checkpoint(Path(resume))
            config_path = config_path or run_dir / "config.yaml"
            flags = ["--run.output_dir", str(run_dir), *flags]
        config = load_config(config_path, flags)

        from transformers.utils import logging  # torch and transformers take seconds; a typo should not

        from kernel_coder.train.loop import train

        logging.disable_progress_bar()
        return EXIT_STOPPED if train(config, resume=resume).status == "stopped" else 0
    except (UsageError, RewardError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_MISTAKE
    except TrainingDiverged as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_DIVERGED


def _run_and_checkpoint(path: Path) -> tuple[Path, str]:
    """``--resume PATH`` takes a run folder (its newest valid checkpoint) or one checkpoint."""
    if not path.is_dir():
        raise UsageError(f"--resume {path} is not a folder")
    return (path.parent, str(path)) if path.name.startswith("checkpoint-") else (path, "auto")


if __name__ == "__main__":
    sys.exit(main())
