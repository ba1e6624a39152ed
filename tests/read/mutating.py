"""Contents with small damages, for readers that must survive all of them."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutations(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with a few bytes changed, taken out, put in or moved, and perhaps its end missing."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(changed) - 1)))
        match draw(st.sampled_from(("flip", "set", "insert", "delete", "repeat", "cut"))):
            case "flip" if changed:
                changed[place] ^= 1 << draw(st.integers(0, 7))
            case "set" if changed:
                changed[place] = draw(st.integers(0, 255))
            case "insert":
                changed[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "delete":
                del changed[place : place + draw(st.integers(1, 64))]
            case "repeat":
                changed[place:place] = changed[place : place + draw(st.integers(1, 64))]
            case "cut":
                del changed[place:]
    return bytes(changed)
