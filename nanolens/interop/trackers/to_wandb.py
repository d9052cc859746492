"""Weights & Biases, online or offline.

Online where this machine has a key of W&B (`wandb login`, WANDB_API_KEY), else offline; WANDB_MODE overrules both. An offline run lies in
the run folder until `wandb sync` sends it. The run's id is ours and is kept, so that a resumed training goes on in the same W&B run.
W&B takes steps in rising order only.
"""

from __future__ import annotations

import html
import math
import netrc
import os
import secrets
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from nanolens.errors import require
from nanolens.interop.trackers import About, Ending, Row


class WandB:
    can_rewind = False

    def open(self, about: About, kept: Mapping[str, Any]) -> dict[str, Any]:
        self._wandb = wandb = require("wandb", "wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
        run_id = kept.get("id") or secrets.token_hex(4)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True, init_timeout=60
        )
        self._run = wandb.init(
            mode=mode, project=about.project, name=about.name, id=run_id, resume="allow", config=dict(about.config),
            dir=os.environ.get("WANDB_DIR") or str(about.folder), settings=settings,
        )  # fmt: skip
        self._mode, self._last_step = mode, int(kept.get("step") or 0)
        return {"id": run_id, "mode": mode}

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            data: dict[str, Any] = {**row.values, "iter": row.step}
            data |= {name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False) for name, text in row.texts.items()}
            if math.isfinite(row.at_s):
                data["_timestamp"] = row.at_s
            self._run.log(data, step=row.step)
            self._last_step = row.step

    def rewind(self, step: int) -> None:
        pass

    def close(self, ending: Ending) -> None:
        for key, value in {**ending.summary, "state": ending.state, **ending.texts}.items():
            self._run.summary[key] = value
        self._run.finish(exit_code=1 if ending.state == "failed" else 0)

    def look(self) -> str:
        return str(self._run.url) if self._mode == "online" else f"wandb sync {self._run.settings.sync_dir}"


def _has_key() -> bool:
    """Whether W&B would find a key: in the environment, or where `wandb login` puts it. Whether it is valid, W&B says."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlparse(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    places = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    for place in filter(None, places):
        try:
            if netrc.netrc(os.path.expanduser(place)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
