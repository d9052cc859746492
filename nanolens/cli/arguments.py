"""argparse as nanoGPT's users expect it: `--key=value` and `--key value`, dashes and underscores alike, any setting as
an option. `commands.toml` says which options a command has."""

from __future__ import annotations

import argparse
import difflib
import pkgutil
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from nanolens.config.fields import settings
from nanolens.errors import Fault, UserError
from nanolens.message import Message, msg
from nanolens.show.words import say


class UsageError(UserError):
    exit_code = 2


class Option(msgspec.Struct, forbid_unknown_fields=True):
    """An option of a command, in argparse's words; texts that name a value of the package stand for that value."""

    help: str
    metavar: str | None = None
    type: Literal["str", "int", "float"] = "str"
    nargs: str | None = None
    choices: list[str] | str = []
    default: str | int | None = None
    flag: bool = False
    repeat: bool = False
    required: bool = False
    values: dict[str, str] = {}  # of the placeholders in `help`


class Command(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    help: str
    settings: Literal["", "listed", "added"] = ""
    takes: list[str] = []
    has_command: bool = False  # what stands behind `--` is a command of its own
    options: dict[str, Option] = {}


class _Table(msgspec.Struct):
    shared: dict[str, dict[str, Option]]
    command: dict[str, Command]


@cache
def _table() -> _Table:
    return msgspec.toml.decode((resources.files("nanolens.cli") / "commands.toml").read_bytes(), type=_Table)


def command_table() -> dict[str, Command]:
    return _table().command


class Parser(argparse.ArgumentParser):
    def __init__(self, name: str, lang: str = "en"):
        super().__init__(prog=f"nanolens {name}", allow_abbrev=False, add_help=False, exit_on_error=False)
        self.lang, self.about = lang, command_table()[name]
        shared = [_table().shared[kind] for kind in ("every", *self.about.takes)]
        for options in (shared[0], self.about.options, *shared[1:]):
            for names, option in options.items():
                self._add(names.split(), option)

    def _add(self, names: list[str], option: Option) -> None:
        values = {key: _value(name) for key, name in option.values.items()}
        # argparse fills its own values into a help text
        help = say(Message(option.help, values), self.lang).replace("%", "%%") or argparse.SUPPRESS
        if option.flag:
            self.add_argument(*names, action="store_true", help=help)
            return
        choices = _value(option.choices) if isinstance(option.choices, str) else option.choices
        action = self.add_argument(
            *names,
            action="append" if option.repeat else "store",
            type=self._reader(names[-1], {"int": int, "float": float}.get(option.type, str), choices),
            choices=choices or None,
            metavar=option.metavar,
            nargs=option.nargs,
            default=option.default,
            help=help,
        )
        action.required = action.required or option.required

    def _reader(self, name: str, kind: Callable[[str], object], choices: Sequence[str]) -> Callable[[str], object]:
        """What argparse calls with the word behind an option."""

        def read(word: str) -> object:
            if choices and word not in choices:
                what = msg("{key:code} = {value:code} is not a valid choice", name, word)
                raise self._usage_error(what, msg("use one of {choices:code}", list(choices)))
            try:
                return kind(word)
            except ValueError:
                wanted = msg("a finite number")
                raise self._usage_error(msg("{key:code} = {value:code} is not {wanted}", name, word, wanted)) from None

        return read

    def _usage_error(self, what: Message, fix: Message | None = None) -> UsageError:
        return UsageError(Fault(what, where=self.prog, fix=fix or self._see_help()))

    def _see_help(self) -> Message:
        return msg("see {command:code}", f"{self.prog} --help")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options by name, with the settings among them as `overrides` and the words behind `--` as `command`."""
        command: list[str] = []
        if self.about.has_command and "--" in argv:
            at = list(argv).index("--")
            argv, command = argv[:at], list(argv[at + 1 :])
        own, overrides = self._separate([_with_underscores(word) for word in argv])
        if "--help" in own or "-h" in own:
            return argparse.Namespace(help=True)
        given = self._own(own)
        given.overrides, given.command = overrides, command
        return given

    def _own(self, argv: list[str]) -> argparse.Namespace:
        """argparse's part, whose errors are only in English: they become ours, which say what to do."""
        required = [action for action in self._actions if action.required and action.nargs != "*"]
        for action in required:
            action.required = False
        try:
            given, others = self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            name = max(str(error.argument_name).split("/"), key=len)
            known = self._option_string_actions.get(name)
            if known is None:
                raise self._usage_error(msg("{problem}", error.message)) from None
            if known.nargs == 0:
                what, written = msg("{option:code} takes no value", name), name
            else:
                what, written = msg("{option:code} needs a value", name), f"{name}=VALUE"
            raise self._usage_error(what, msg("write {option:code}", written)) from None
        if others:
            setting = re.fullmatch(r"-?(\w[\w-]*=.*)", others[0])
            fix = msg("write {option:code}", f"--{setting[1]}") if setting else None
            raise self._usage_error(msg("unrecognised: {words:code}", " ".join(others)), fix)
        missing = [each.metavar or each.option_strings[-1] for each in required if not getattr(given, each.dest)]
        if missing:
            raise self._usage_error(msg("missing: {names:code}", missing))
        return given

    def _separate(self, argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
        own: list[str] = []
        overrides: list[tuple[str, str]] = []
        words = deque(argv)
        while words:
            word = words.popleft()
            if word == "--":
                return [*own, word, *words], overrides
            name, has_value, value = word.partition("=")
            if not word.startswith("--") or name in self._option_string_actions:
                own.append(word)
                continue
            if not self.about.settings:
                known = [option for option in self._option_string_actions if option.startswith("--")]
                what = msg("{command:code} has no option {option:code}", self.prog, name)
                raise UsageError(Fault(what, fix=did_you_mean(name, known) or self._see_help()))
            setting, following = settings().get(name[2:]), words[0] if words else "--"
            is_switch = setting is not None and setting.type is bool
            if not has_value and is_switch and following.lower() not in ("true", "false", "auto", "0", "1"):
                value = "True"
            elif not has_value and not following.startswith("--"):
                value = words.popleft()
            elif not has_value and setting is None:
                value = "True"  # there is no such setting, which is said with all other faults
            elif not has_value:
                what = msg("{option:code} needs a value", name)
                raise UsageError(Fault(what, fix=msg("write {option:code}", f"{name}=VALUE")))
            overrides.append((name[2:], value))
        return own, overrides


def _value(name: str) -> Sequence[str]:
    """The words that `module:NAME` names."""
    return list(pkgutil.resolve_name(name))


def did_you_mean(word: str, known: Iterable[str]) -> Message | None:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return msg("did you mean {nearest:code}?", near[0]) if near else None


def _with_underscores(word: str) -> str:
    if not word.startswith("--") or word == "--":
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
