"""Self-contained HTML pages that show untrusted text safely.

A page extends ``base.html.jinja``, whose content security policy allows only the page's own script and style.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, DictLoader, Environment, FunctionLoader, StrictUndefined

NO_VALUE = "–"
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
BASE = "base.html.jinja"


def render(package: str, template: str, script: str | None, **values: Any) -> str:
    """Renders a package's template, with a script of that package if given. Values are escaped unless ``Markup``."""
    files = resources.files(package)
    code = "" if script is None else files.joinpath(script).read_text(encoding="utf-8")
    environment = Environment(
        loader=_loader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible"] = visible
    environment.globals["times"] = times
    return environment.get_template(template).render(
        script=code,
        # With this hash in the content security policy, the browser runs no other script.
        script_hash=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        **values,
    )


def _loader(package: str) -> BaseLoader:
    base = resources.files(__name__).joinpath(BASE).read_text(encoding="utf-8")
    files = resources.files(package)
    return ChoiceLoader(
        [
            DictLoader({BASE: base}),
            FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8")),
        ]
    )


def visible(text: str) -> str:
    """Replaces control characters, unpaired surrogates and marks that change the text direction.

    HTML or UTF-8 does not allow the former. The latter could make code look different from what it does.

    >>> visible("a\\x00b\\ud800\\u202e\\n")
    'a\\ufffdb\\ufffd\\ufffd\\n'
    """
    return _HIDDEN.sub("\ufffd", text)


def percent(value: float | None) -> str:
    """Return a share in percent.

    >>> percent(0.125), percent(None)
    ('12.5%', '–')
    """
    return NO_VALUE if value is None else f"{100 * value:.1f}%"


def times(value: float | None) -> str:
    """Return a ratio, with three digits.

    >>> times(1.5), times(1234.5)
    ('1.50x', '1,234x')
    """
    return NO_VALUE if value is None else f"{value:,.0f}x" if value >= 100 else f"{value:.2f}x"
