"""Importing this has Triton do once what it does at a process's first compilation; for a parent of processes."""

import logging

from kernel_coder.judge.triton_cache import compile_once

try:
    compile_once()
except Exception as error:  # each process does it for itself, then
    logging.getLogger(__name__).info("Triton was not started beforehand: %s", error)
