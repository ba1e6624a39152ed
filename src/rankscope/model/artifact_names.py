"""Names that torch's guide and torch's logs spell differently: a search for either must find the file."""

from __future__ import annotations

_WRITTEN, _IN_GUIDE = "aotautograd_cache_", "aot_autograd_cache_"


def other_spelling(name: str) -> str:
    """`aot_autograd_cache_miss_3.json` for aotautograd_cache_miss_3.json, and back; empty for all other names."""
    for prefix, other in ((_WRITTEN, _IN_GUIDE), (_IN_GUIDE, _WRITTEN)):
        if name.startswith(prefix):
            return other + name.removeprefix(prefix)
    return ""


def with_other_spelling(name: str) -> str:
    other = other_spelling(name)
    return f"{name} ({other})" if other else name
