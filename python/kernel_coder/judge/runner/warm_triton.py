"""Does Triton's work at a process's first kernel once for all Runners. Import this in their parent process."""

import logging
import os

from kernel_coder.judge.runner.triton_cache import compile_once, import_descriptors

try:
    if os.environ.get("TRITON_INTERPRET") == "1":
        import_descriptors()
    else:
        compile_once()
except Exception as error:  # then every Runner does this work itself
    logging.getLogger(__name__).info("Triton was not started in the parent of the Runners: %s", error)
