"""Tests with the real libraries of others, which the default suite does not install: ``make test-integrations``."""

from __future__ import annotations

import os

if not os.environ.get("KC_INTEGRATIONS"):
    collect_ignore_glob = ["test_*.py"]
