"""What probes of a run answered, as they left it in the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nanolens.record.layout import PROBES, answer_files
from nanolens.record.run import Known


def probe_facts(folder: Path) -> dict[str, Known]:
    """The answer of the newest step that was probed, as the fact `probes`; nothing where none can be read."""
    for path in reversed(answer_files(folder)):
        try:
            answer: Any = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue  # being written, or cut off: an older one, or none, is no worse than the run without it
        if isinstance(answer, dict) and isinstance(answer.get("effects"), list):
            return {"probes": Known(answer, "recorded", f"{PROBES}/{path.name}")}
    return {}
