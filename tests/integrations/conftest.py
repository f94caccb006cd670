"""Tests of the adapters. Those with the real libraries run in environments of their own: ``make test-integrations``."""

from __future__ import annotations

import os

if not os.environ.get("KC_INTEGRATIONS"):
    collect_ignore_glob = ["test_real_*.py"]
