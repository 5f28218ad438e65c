"""Credentials in settings of requests: headers, and what is named like a key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .secret_fields import HIDDEN

_names_a_secret = re.compile(
    r"(^|[_-]|(?<=[a-z0-9])(?=[A-Z]))(?i:api_?key|key|token|secret|password|authorization|credentials?)$"
).search


def hide_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they may be written down and digested: a new key makes no other settings of them."""
    hidden = dict(settings)
    if isinstance(headers := hidden.get("extra_headers"), dict):
        hidden["extra_headers"] = dict.fromkeys(headers, HIDDEN)
    for name in ("extra_body", "extra_query"):
        if name in hidden:
            hidden[name] = hide_keys(hidden[name])
    return hidden


def hide_keys(data: Any) -> Any:
    """Return JSON data without the values of what is named like a key."""
    if isinstance(data, dict):
        return {key: HIDDEN if _names_a_secret(str(key)) else hide_keys(item) for key, item in data.items()}
    return [hide_keys(item) for item in data] if isinstance(data, list) else data
