"""Which sentences the package says, and which of them a language still lacks.

    python tools/locale_check.py [hi]
    python tools/locale_check.py --missing > new.json    # the sentences without a translation, to be filled in
    python tools/locale_check.py --fill new.json         # takes them into the catalogue and drops what nobody says any more

The sentences are collected from the source: the literals of `msg("…")`, what the presets say about themselves, and the paragraphs of
the symptoms' docstrings, which `diagnose --why` prints.
"""

from __future__ import annotations

import ast
import json
import string
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanolens.message import KINDS, placeholders
from nanolens.show.words import LANGUAGES, catalogue, is_literal, paragraphs

PACKAGE = Path(__file__).parent.parent / "nanolens"


@dataclass
class Collected:
    sentences: dict[str, str] = field(default_factory=dict)  # sentence -> first place where it stands
    faults: list[str] = field(default_factory=list)  # places that break the rules of `nanolens.message`

    def add(self, sentence: str, where: str) -> None:
        if needs_translation(sentence):
            self.sentences.setdefault(sentence, where)


def collect(package: Path = PACKAGE) -> Collected:
    found = Collected()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        _take_messages(tree, name, found)
        if name.startswith("analysis/symptoms/") and path.name != "__init__.py":
            _take_page(ast.get_docstring(tree, clean=False) or "", name, found)
    for path in sorted((package / "config" / "presets").glob("*.toml")):
        about = tomllib.loads(path.read_text(encoding="utf-8")).get("about", {})
        for key in ("summary", "val_loss_source", "took"):
            if key in about:
                found.add(about[key], path.name)
    return found


def needs_translation(sentence: str) -> bool:
    """A sentence that is all placeholder and punctuation is the same in every language."""
    return any(letter.isalpha() for text, *_ in string.Formatter().parse(sentence) for letter in text)


def faults_of(sentences: Mapping[str, str], translations: Mapping[str, str]) -> Iterator[str]:
    """What keeps the translations from being complete and true to the sentences in the source."""
    for sentence, where in sentences.items():
        if sentence not in translations:
            yield f"missing: {where}: {sentence!r}"
    for sentence, translation in translations.items():
        if sentence not in sentences:
            yield f"stale: {sentence!r}"
        elif "{" in sentence and placeholders(sentence) != _placeholders_or_none(translation):
            yield f"other placeholders: {sentence!r} -> {translation!r}"
        elif not translation.strip():
            yield f"empty: {sentence!r}"
        elif _indent(sentence) != _indent(translation):
            yield f"other indentation: {sentence!r} -> {translation!r}"


def _indent(sentence: str) -> int:
    return len(sentence) - len(sentence.lstrip(" "))


def _take_messages(tree: ast.Module, name: str, found: Collected) -> None:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("msg", "Message")):
            continue
        where = f"{name}:{node.lineno}"
        if node.func.id == "Message":
            if name not in ("message.py", "config/preset.py"):
                found.faults.append(f"{where}: a Message is made with msg(…), so that its sentence can be collected")
            continue
        first = node.args[0] if node.args else None
        if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            found.faults.append(f"{where}: the sentence of msg(…) must be a literal")
            continue
        _take_message(first.value, node.keywords, where, found)


def _take_message(sentence: str, keywords: list[ast.keyword], where: str, found: Collected) -> None:
    try:
        wanted = placeholders(sentence)
    except ValueError as error:
        found.faults.append(f"{where}: {error}: {sentence!r}")
        return
    for kind in set(wanted.values()) - KINDS:
        found.faults.append(f"{where}: there is no kind {kind!r}: {sentence!r}")
    given = {keyword.arg for keyword in keywords}
    if None not in given and given != set(wanted):
        found.faults.append(f"{where}: the sentence has {sorted(wanted)}, the call gives {sorted(map(str, given))}")
    found.add(sentence, where)


def _take_page(docstring: str, name: str, found: Collected) -> None:
    for paragraph in paragraphs(docstring):
        if not is_literal(paragraph):
            found.add(paragraph, name)


def _placeholders_or_none(translation: str) -> dict[str, str] | None:
    try:
        return placeholders(translation)
    except ValueError:
        return None


def _fill(lang: str, path: Path, sentences: Mapping[str, str]) -> None:
    new = {sentence: text for sentence, text in json.loads(path.read_text(encoding="utf-8")).items() if text}
    kept = {sentence: text for sentence, text in sorted({**catalogue(lang), **new}.items()) if sentence in sentences}
    file = PACKAGE / "show" / "locale" / f"{lang}.json"
    file.write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def _main(arguments: list[str]) -> int:
    said = collect()
    if "--missing" in arguments:
        have = catalogue("hi")
        print(json.dumps({sentence: "" for sentence in said.sentences if sentence not in have}, ensure_ascii=False, indent=0))
        return 0
    if "--fill" in arguments:
        _fill("hi", Path(arguments[arguments.index("--fill") + 1]), said.sentences)
        return 0
    chosen = arguments or [lang for lang in LANGUAGES if lang != "en"]
    problems = said.faults + [f"{lang}: {problem}" for lang in chosen for problem in faults_of(said.sentences, catalogue(lang))]
    print("\n".join(problems) or f"{len(said.sentences)} sentences, all there in {', '.join(chosen)}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
