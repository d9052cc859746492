"""The list of all settings, for `--help` and for the docs: made from the fields, never written by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from nanolens.config.fields import Group, Setting, as_text, settings
from nanolens.message import Message, msg

TITLES: dict[Group, Message] = {
    "model": msg("Model"),
    "data": msg("Data"),
    "optimizer": msg("Optimizer"),
    "schedule": msg("Schedule"),
    "evaluation": msg("Evaluation and samples"),
    "checkpoint": msg("Checkpoints"),
    "machine": msg("Machine"),
    "output": msg("Output"),
}


def settings_text(say: Callable[[Message], str]) -> str:
    """Plain text for the terminal: name, default, meaning."""
    lines = [say(msg("Settings, each as {form:code}; a preset or a config file may set them too:", form="--key=value"))]
    for group, members in groupby(settings().values(), key=lambda known: known.group):
        lines += ["", say(TITLES[group])]
        for known in members:
            lines.append(f"  --{known.name}={as_text(known.default)}{' ' + known.unit if known.unit else ''}")
            lines.append(f"      {say(known.meaning)}")
    return "\n".join(lines)


def settings_markdown(say: Callable[[Message], str]) -> str:
    """The option reference of the docs."""
    lines = ["# Settings", "", "Made from `nanolens/config/fields.py` by `python -m nanolens.config.reference`.", ""]
    for group, members in groupby(settings().values(), key=lambda known: known.group):
        lines += [f"## {say(TITLES[group])}", "", "| setting | default | unit | range | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{known.name}` | `{as_text(known.default)}` | {known.unit} | {_range(known)} | {say(known.meaning).replace('|', '/')} |"
            for known in members
        ]
        lines.append("")
    return "\n".join(lines)


def _range(known: Setting) -> str:
    if known.choices:
        return ", ".join(f"`{choice}`" for choice in known.choices)
    if known.low is None:
        return "True, False" if known.type is bool else ""
    return f"{known.low:,} to {known.high:,}"


if __name__ == "__main__":
    print(settings_markdown(str), end="")
