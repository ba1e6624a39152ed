"""Files that are no trace of any kind, as they lie about in folders of traces."""

from __future__ import annotations

import json
import pickle

CONTENTS: dict[str, bytes] = {
    "text": b"the holiday began with rain, and the train was late: a timeout of two hours\n",
    "picture": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00",
    "zeros": bytes(4096),
    "other-pickle": pickle.dumps([1.5, "loss", (2, 3)], protocol=2),
    "other-dict": pickle.dumps({"model": {"weight": [1, 2, 3]}, "step": 12}, protocol=2),
    "other-json": json.dumps({"name": "config", "layers": [1, 2, 3]}).encode(),
    "bare-json": b"17",
    "cut-gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01\x02",
}
