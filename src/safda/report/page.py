"""What every page is made of: its assets, what a policy allows them by, and data that no browser reads as markup."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from markupsafe import Markup


def asset(name: str) -> str:
    """Return a file of the page's own: a style or a script."""
    return resources.files("safda.report").joinpath("assets", name).read_text(encoding="utf-8")


def digest(content: str) -> str:
    """Return what a policy within the page allows an inline script or style by.

    >>> digest("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def json_in_html(value: Any) -> Markup:
    """Return JSON for a script element: nothing in it ends that element, begins a comment or breaks a line.

    >>> print(json_in_html(["</script><!--", "a & b", chr(0x2028)]))
    ["\\u003c/script\\u003e\\u003c!--","a \\u0026 b","\\u2028"]
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII, so line ends of any kind are escaped
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)
