"""argv -> one command -> exit code. `commands.toml` lists the commands; what they do is in `commands`, or in a file."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import groupby

from nanolens.cli.arguments import Parser, UsageError, command_table, did_you_mean
from nanolens.errors import Fault, UserError
from nanolens.message import Message, msg
from nanolens.show.words import LANGUAGES, say, translated

READING = "explain diagnose compare referee forecast plan runs report plot".split()
"""A training frees its memory as soon as it can; these need not look for circles among their objects."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # old Windows consoles would stop at the first Hindi letter
            stream.reconfigure(encoding="utf-8", errors="replace")
    lang = language(words, os.environ)
    try:
        return _run(words, lang)
    except UserError as error:
        if error.faults:
            print(_faults(error, lang), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader (`head`, a pager) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str], lang: str) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_overview(lang))
        return 0
    if words[0] == "--version":
        print(f"nanolens {version('nanolens')}")
        return 0
    name, rest = words[0].replace("-", "_"), words[1:]
    if name not in command_table():
        near = _instead(name, rest) or did_you_mean(name, command_table())
        fix = near or msg("see {command:code}", "nanolens --help")
        raise UsageError(Fault(msg("unknown command {command:code}", words[0]), fix=fix))
    if name in READING:
        gc.set_threshold(100_000)  # at every 700th object it took a tenth of the time that reading a long log takes
    parser = Parser(name, lang)
    given = parser.parse(rest)
    if given.help:
        print(_help(parser, lang))
        return 0
    given.lang = given.lang or lang
    return _function(name)(given)


def _function(name: str) -> Callable[..., int]:
    if name in ("train", "sample", "watch"):
        return importlib.import_module(f"nanolens.cli.{name}").run
    from nanolens.cli.commands import OWN, call

    return OWN.get(name) or partial(call, name)


def _instead(name: str, rest: Sequence[str]) -> Message | None:
    """The command for a word that is not one, but plainly means something."""
    run = rest[0] if rest and not rest[0].startswith("-") else "RUN"
    meant = {
        "resume": f"nanolens train --init_from=resume --out_dir={run}",
        "continue": f"nanolens train --init_from=resume --out_dir={run}",
        "generate": f"nanolens sample {run}",
        "list": "nanolens runs",
        "ls": "nanolens runs",
        "tokenize": f"nanolens prepare {run if run != 'RUN' else 'FILE'}",
        "eval": f"nanolens train --eval_only=True --init_from=resume --out_dir={run}",
        "version": "nanolens --version",
    }
    return msg("did you mean {nearest:code}?", meant[name]) if name in meant else None


def language(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """`--lang=hi`, or the locale's language where we speak it, or English."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--lang":
            asked = value if equals else "".join(words[i + 1 : i + 2])
            return asked if asked in LANGUAGES else "en"
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return locale[:2] if locale[:2] in LANGUAGES else "en"


def _overview(lang: str) -> str:
    about = msg("nanolens trains small GPTs on the machine you have, and explains every number of the training.")
    lines = [say(about, lang), "", "  nanolens COMMAND [...]"]
    for group, members in groupby(command_table().items(), key=lambda entry: entry[1].group):
        lines += ["", translated(group, lang)]
        lines += [f"  {name:<10}{translated(command.help, lang)}" for name, command in members]
    lines += ["", say(msg("{command:code} shows the options of a command.", "nanolens COMMAND --help"), lang)]
    return "\n".join(lines)


def _help(parser: Parser, lang: str) -> str:
    parts = [translated(parser.about.help, lang), parser.format_help().rstrip()]
    if parser.about.settings == "listed":
        from nanolens.config.fields import settings_text

        parts += [_presets(lang), settings_text(lambda message: say(message, lang))]
    elif parser.about.settings:
        more = msg(
            "{option:code} adds what the source does not say, by setting name; {command:code} lists the settings",
            "--KEY=VALUE",
            "nanolens train --help",
        )
        parts.append(say(more, lang))
    return "\n\n".join(parts)


def _presets(lang: str) -> str:
    from nanolens.config.load import named_preset, preset_names

    lines = [say(msg("Presets:"), lang)]
    for preset in filter(None, map(named_preset, preset_names())):
        known = [say(part, lang) for part in (preset.summary, preset.took) if part is not None]
        if preset.val_loss is not None:
            known.insert(1, say(msg("val loss {loss:nats}", preset.val_loss), lang))
        lines += [f"  {preset.name}", f"      {'; '.join(part.rstrip('.') for part in known)}"]
    return "\n".join(lines)


def _faults(error: UserError, lang: str) -> str:
    lines = []
    for fault in error.faults:
        lines.append(say(msg("error: {what}", fault.what), lang))
        if fault.where is not None:
            lines.append("  " + say(msg("in: {where:code}", fault.where), lang))
        if fault.fix is not None:
            lines.append("  " + say(msg("fix: {fix}", fault.fix), lang))
    return "\n".join(lines)
