"""A command is a function of the Python API with the options as its arguments: what it returns is printed in the form
that was asked for. Commands that show something of their own on the way have a function here."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import webbrowser
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import nanolens
from nanolens.cli.progress import converting, preparing, sending, tell
from nanolens.message import msg
from nanolens.show.answer import Answer, dumped
from nanolens.show.document import GAP, Text, for_stream, said


def call(name: str, given: Namespace, **others: object) -> int:
    """Calls `nanolens.NAME` with what was given, and prints its answer."""
    return print_answer(result_of(name, given, **others), given)


def print_answer(answer: Answer[Any], given: Namespace) -> int:
    has_forms = hasattr(given, "json")  # of the answer; a command's own --format is that of the file it writes
    form = ("json" if given.json else given.format) if has_forms else "text"
    if form == "json":
        print(dumped(answer.data(given.lang)))
    elif form == "text":
        print(for_stream(list(answer.parts(given.lang)), sys.stdout, given.lang), end="")
    else:
        print((answer.markdown if form == "md" else answer.html)(given.lang), end="")
    return answer.exit_code


def result_of(name: str, given: Namespace, **others: object) -> Any:
    """Options go to the parameters of their names, settings are further arguments; the rest is left to the defaults."""
    function = getattr(nanolens, name)
    options = {"tell": lambda message: tell(message, given.lang), **vars(given), **others}
    positional: list[object] = []
    named: dict[str, object] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= dict(given.overrides)
        elif options.get(key) is None:
            continue
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional += options[key]
        else:
            named[key] = options[key]
    return function(*positional, **named)


def _explain(given: Namespace) -> int:
    """What has arrived through a pipe is explained while the rest is still coming."""
    if given.target != "-" or given.term or given.json or given.format != "text":
        return call("explain", given)
    from nanolens.explanation.pick import Explanation, Section
    from nanolens.explanation.subject import ExplainTarget, follow
    from nanolens.explanation.words import explanation_parts, passage_parts, section_parts

    target = ExplainTarget(given.target, given.config, given.hardware, given.overrides)
    for part in follow(target, sys.stdin.buffer):
        if isinstance(part, Explanation):
            parts = list(explanation_parts(part))
        elif isinstance(part, Section):
            parts = [*section_parts(part), GAP]
        else:
            parts = list(passage_parts(part))
        if parts:
            print(for_stream(parts, sys.stdout, given.lang), end="", flush=True)
    return 0


def _probe(given: Namespace) -> int:
    from nanolens.probing.branches import Interrupted

    try:
        return call("probe", given)
    except Interrupted:
        return 130


def _prepare(given: Namespace) -> int:
    with _stoppable(), preparing(given.lang) as progress:
        return call("prepare", given, progress=progress)


@contextmanager
def _stoppable() -> Iterator[None]:
    """A polite kill ends as Ctrl-C does: what was half written is removed on the way out."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _convert(name: str, given: Namespace) -> int:
    with converting(given.lang) as progress:
        return call(name, given, progress=progress)


def _send(given: Namespace) -> int:
    with sending(given.to) as progress:
        answer = result_of("send", given, progress=progress)
    return print_answer(answer, given)


def _verify(given: Namespace) -> int:
    """Each part is printed as soon as it is checked: hashing a large checkpoint takes a while."""
    from nanolens.show.runs import checked_lines

    answer = result_of("verify", given, tell=lambda part: _print_now(checked_lines(part), given.lang))
    print(answer.text(given.lang).splitlines()[-1])
    return answer.exit_code


def _selftest(given: Namespace) -> int:
    from nanolens.show.runs import check_line

    _print_now([msg("nanolens selftest: eight checks, about five minutes")], given.lang)
    answer = result_of("selftest", given, tell=lambda check: _print_now([check_line(check)], given.lang))
    print("\n".join(answer.text(given.lang).splitlines()[len(answer.value.checks) :]))
    return answer.exit_code


def _print_now(lines: Iterable[Text], lang: str) -> None:
    for line in lines:
        print(said(line, lang), flush=True)


def _dashboard(given: Namespace) -> int:
    def on_ready(url: str) -> None:
        address = msg("nanolens is running at {url:code}", url)
        who = msg("Only this machine can reach it, and only with this address. Ctrl-C stops it.")
        _print_now([address, who], given.lang)
        if not given.no_browser and _has_screen():
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    result_of("dashboard", given, on_ready=on_ready)
    return 0


def _has_screen() -> bool:
    """Browsers of the terminal would take the terminal away."""
    is_linux = sys.platform.startswith("linux")
    return not is_linux or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


OWN: dict[str, Callable[[Namespace], int]] = {
    "explain": _explain,
    "probe": _probe,
    "prepare": _prepare,
    "export": partial(_convert, "export"),
    "import": partial(_convert, "import_"),
    "send": _send,
    "try": partial(call, "try_"),
    "verify": _verify,
    "selftest": _selftest,
    "dashboard": _dashboard,
}
