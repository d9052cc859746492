"""argv -> one command -> exit code. Each command is a short file here: HELP, arguments(parser), run(given)."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from nanolens.errors import Fault, UserError
from nanolens.message import Message, msg

GROUPS: tuple[tuple[Message, tuple[str, ...]], ...] = (
    (msg("Train"), ("prepare", "train", "sample", "tune")),
    (msg("Understand"), ("explain", "diagnose", "compare", "forecast", "probe")),
    (msg("Plan"), ("plan", "sweep")),
    (msg("Look"), ("runs", "watch", "dashboard", "report", "plot")),
    (msg("Keep"), ("stop", "verify", "selftest", "export", "import", "send")),
)

READING = ("explain", "diagnose", "compare", "forecast", "plan", "runs", "report", "plot")  # a training frees its memory as soon as it can

WHERE_SETTINGS_ARE_LISTED = ("train", "plan", "tune", "sweep")  # elsewhere they only add what a log leaves out


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")  # old Windows consoles would stop at the first Hindi letter
    lang = language(words)
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
    from nanolens.cli.arguments import Parser, UsageError, did_you_mean

    if not words or words[0] in ("--help", "-h", "help"):
        print(_overview(lang))
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"nanolens {version('nanolens')}")
        return 0
    name, rest = words[0].replace("-", "_"), words[1:]
    if name not in available():
        raise UsageError(
            Fault(
                msg("nanolens has no command {command:code}", command=words[0]),
                fix=_instead(name, rest) or did_you_mean(name, available()) or msg("see {command:code}", command="nanolens --help"),
            )
        )
    if name in READING:
        gc.set_threshold(100_000)  # looking for circles at every 700th object took a tenth of the time that reading a long log takes
    command = _module(name)
    parser = Parser(name, lang)
    parser.add_argument("--lang", choices=_languages(), help=msg("language of the answer; otherwise that of the locale"))
    command.arguments(parser)
    given = parser.parse(rest)
    if given.help:
        print(_help(command, parser, lang))
        return 0
    given.lang = given.lang or lang
    return command.run(given)


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
    return msg("did you mean {nearest:code}?", nearest=meant[name]) if name in meant else None


def available() -> list[str]:
    """The commands whose file is there."""
    from importlib.resources import files

    here = files("nanolens.cli")
    return [name for _, names in GROUPS for name in names if (here / f"{_file(name)}.py").is_file()]


def language(words: Sequence[str]) -> str:
    """`--lang=hi`, or the locale's language where we speak it, or English."""
    for i, word in enumerate(words):
        if word.startswith("--lang="):
            return word.removeprefix("--lang=") if word.removeprefix("--lang=") in _languages() else "en"
        if word == "--lang" and i + 1 < len(words) and words[i + 1] in _languages():
            return words[i + 1]
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return locale[:2] if locale[:2] in _languages() else "en"


def say(message: Message, lang: str) -> str:
    from nanolens.show import words

    return words.say(message, lang)


def _languages() -> tuple[str, ...]:
    from nanolens.show.words import LANGUAGES

    return LANGUAGES


def _file(name: str) -> str:
    return "import_" if name == "import" else name


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"nanolens.cli.{_file(name)}")


def _overview(lang: str) -> str:
    there = set(available())
    lines = [
        say(msg("nanolens trains small GPTs on the machine you have, and makes every number of the training understood."), lang),
        "",
        "  nanolens COMMAND [...]",
    ]
    for title, names in GROUPS:
        shown = [name for name in names if name in there]
        if shown:
            lines += ["", say(title, lang)]
            lines += [f"  {name:<10}{say(_module(name).HELP, lang)}" for name in shown]
    lines += ["", say(msg("{command:code} tells the options of one command.", command="nanolens COMMAND --help"), lang)]
    return "\n".join(lines)


def _help(command: ModuleType, parser: object, lang: str) -> str:
    text = say(command.HELP, lang) + "\n\n" + parser.format_help().rstrip()  # type: ignore[attr-defined]
    if parser.with_settings and command.__name__.rpartition(".")[2] in WHERE_SETTINGS_ARE_LISTED:  # type: ignore[attr-defined]
        from nanolens.config.reference import settings_text

        text += "\n\n" + _presets(lang) + "\n\n" + settings_text(lambda message: say(message, lang))
    elif parser.with_settings:  # type: ignore[attr-defined]
        more = msg(
            "{option:code} says what the source does not, by the name of a setting; {command:code} lists them",
            option="--KEY=VALUE", command="nanolens train --help",
        )  # fmt: skip
        text += "\n\n" + say(more, lang)
    return text


def _presets(lang: str) -> str:
    from nanolens.config.preset import named_preset, preset_names

    lines = [say(msg("Presets:"), lang)]
    for preset in filter(None, map(named_preset, preset_names())):
        known = [say(part, lang) for part in (preset.summary, preset.took) if part is not None]
        if preset.val_loss is not None:
            known.insert(1, say(msg("val loss {loss:nats}", loss=preset.val_loss), lang))
        lines += [f"  {preset.name}", f"      {'; '.join(part.rstrip('.') for part in known)}"]
    return "\n".join(lines)


def _faults(error: UserError, lang: str) -> str:
    lines = []
    for fault in error.faults:
        lines.append(say(msg("error: {what}", what=fault.what), lang))
        if fault.where is not None:
            lines.append("  " + say(msg("in: {where}", where=fault.where), lang))
        if fault.fix is not None:
            lines.append("  " + say(msg("fix: {fix}", fix=fault.fix), lang))
    return "\n".join(lines)
