"""argparse as nanoGPT's users expect it: `--key=value` and `--key value`, dashes and underscores alike, any setting as an option."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from nanolens.config.fields import settings
from nanolens.errors import Fault, UserError
from nanolens.message import Message, msg


class UsageError(UserError):
    """The call itself is off."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    def __init__(self, name: str, lang: str = "en"):
        self.lang = lang
        super().__init__(prog=f"nanolens {name}", allow_abbrev=False, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.with_settings = self.with_command = False
        self.add_argument("--help", "-h", action="store_true", help=argparse.SUPPRESS)

    def takes_settings(self) -> None:
        """Any `--key=value` that this parser does not know goes into `given.overrides`, for `config.load` to judge with all the others."""
        self.with_settings = True

    def takes_command(self) -> None:
        """What stands behind `--` is a command of its own and goes into `given.command`, untouched."""
        self.with_command = True

    def add_argument(self, *names: Any, help: Message | str | None = None, **about: Any) -> argparse.Action:
        if isinstance(help, Message):
            from nanolens.show.words import say

            help = say(help, self.lang).replace("%", "%%")  # argparse fills its own values into a help text
        return super().add_argument(*names, help=help, **about)

    def error(self, message: str) -> NoReturn:
        what, fix = self._in_our_words(message)
        raise UsageError(Fault(what, where=msg("{command:code}", command=self.prog), fix=fix))

    def _in_our_words(self, message: str) -> tuple[Message, Message]:
        """What argparse says in English only, said so that it can be translated and acted on."""
        see = msg("see {command:code}", command=f"{self.prog} --help")
        if found := re.fullmatch(r"the following arguments are required: (.+)", message):
            return msg("something is missing: {names:code}", names=found[1]), see
        if found := re.fullmatch(r"argument ([^:]+): invalid choice: '(.*)' \(choose from (.+)\)", message):
            choices = [each.strip("' ") for each in found[3].split(",")]
            what = msg("{key:code} = {value:code} is not one of its choices", key=_option(found[1]), value=found[2])
            return what, msg("use one of {choices:code}", choices=choices)
        if found := re.fullmatch(r"argument ([^:]+): invalid (?:int|float) value: '(.*)'", message):
            return msg("{key:code} = {value:code} is not {wanted}", key=_option(found[1]), value=found[2], wanted=msg("a number")), see
        if found := re.fullmatch(r"argument ([^:]+): expected (?:one|at least one) argument", message):
            name = _option(found[1])
            return msg("{option:code} needs a value", option=name), msg("write {option:code}", option=f"{name}=VALUE")
        if found := re.fullmatch(r"argument ([^:]+): ignored explicit argument '.*'", message):
            name = _option(found[1])
            return msg("{option:code} takes no value", option=name), msg("write {option:code}", option=name)
        if found := re.fullmatch(r"unrecognized arguments: (.+)", message):
            words = found[1].split()
            setting = re.fullmatch(r"-?(\w[\w-]*=.*)", words[0])
            fix = msg("write {option:code}", option=f"--{setting[1]}") if setting else see
            return msg("{words:code} means nothing here", words=" ".join(words)), fix
        return msg("{problem}", problem=message), see

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        command: list[str] = []
        if self.with_command and "--" in argv:
            at = list(argv).index("--")
            argv, command = argv[:at], list(argv[at + 1 :])
        own, overrides = self._separate([_with_underscores(word) for word in argv])
        if "--help" in own or "-h" in own:
            return argparse.Namespace(help=True)
        given = self.parse_args(own)
        given.overrides = overrides
        if self.with_command:
            given.command = command
        return given

    def _separate(self, argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """This parser's own words, and the settings among them."""
        own: list[str] = []
        overrides: list[tuple[str, str]] = []
        words = iter(range(len(argv)))
        for i in words:
            word = argv[i]
            if word == "--":
                own += argv[i:]
                break
            name, has_value, value = word.partition("=")
            if not word.startswith("--") or name in self._option_string_actions:
                own.append(word)
                continue
            key = name[2:]
            if not self.with_settings:
                raise UsageError(self._unknown(name))
            following = argv[i + 1] if i + 1 < len(argv) else "--"
            if has_value:
                overrides.append((key, value))
            elif key in settings() and settings()[key].type is bool and following.lower() not in ("true", "false", "auto", "0", "1"):
                overrides.append((key, "True"))
            elif not following.startswith("--"):
                overrides.append((key, following))
                next(words)
            elif key not in settings():
                overrides.append((key, "True"))  # there is no such setting, which is told with all other faults
            else:
                what = msg("{option:code} needs a value", option=name)
                raise UsageError(Fault(what, fix=msg("write {option:code}", option=f"{name}=VALUE")))
        return own, overrides

    def _unknown(self, name: str) -> Fault:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        return Fault(
            msg("{command:code} has no option {option:code}", command=self.prog, option=name),
            fix=did_you_mean(name, known) or msg("see {command:code}", command=f"{self.prog} --help"),
        )


def _option(names: str) -> str:
    """`-o/--out` is known by its long name."""
    return max(names.split("/"), key=len)


def did_you_mean(word: str, known: Iterable[str]) -> Message | None:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return msg("did you mean {nearest:code}?", nearest=near[0]) if near else None


def _with_underscores(word: str) -> str:
    if not word.startswith("--") or word == "--":
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
