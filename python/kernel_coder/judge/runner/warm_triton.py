"""Importing this has Triton do once what it does at a process's first kernel; for a parent of processes."""

import logging
import os

from kernel_coder.judge.runner.triton_cache import compile_once, import_descriptors

try:
    if os.environ.get("TRITON_INTERPRET") == "1":
        import_descriptors()
    else:
        compile_once()
except Exception as error:  # each process does it for itself, then
    logging.getLogger(__name__).info("Triton was not started beforehand: %s", error)
