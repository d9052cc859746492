"""Which sentences the package says, and which of them a language still lacks.

    python tools/locale_check.py [hi]
    python tools/locale_check.py --missing > new.json  # the sentences without a translation, to be filled in
    python tools/locale_check.py --fill new.json  # takes them into the catalogue and drops what nobody says
        any more

The sentences are collected from the source: the literals of `msg("…")`, what the presets say about themselves, the
meanings in config/settings.toml, the tables of SENTENCES_IN, the sentences of page/strings.toml, the glossary, the
findings in diagnosis/codes.toml and the pages of the rules (`diagnose --why`). A missing or stale translation is a
warning, and an error only for a release (NANOLENS_RELEASE=1); other placeholders are always an error."""

from __future__ import annotations

import ast
import json
import os
import string
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nanolens
from nanolens.diagnosis.pages import pages
from nanolens.diagnosis.rule import FINE, LACKS, SENTENCES, WORDS
from nanolens.explanation.glossary import parse_terms
from nanolens.message import KINDS, placeholders
from nanolens.page.view import page_strings
from nanolens.show.words import LANGUAGES, catalogue, is_literal, paragraphs

PACKAGE = Path(nanolens.__file__).parent
FROM_TABLES = """message.py config/load.py config/fields.py diagnosis/rule.py explanation/glossary.py cli/arguments.py
    planning/figures.py forecasting/__init__.py comparison/side.py comparison/remarks.py comparison/words.py
    probing/judge.py refereeing/series.py""".split()
"""Files whose sentences stand in a table that is collected here."""
SENTENCES_IN = {
    "cli/commands.toml": {"help", "group"},
    "comparison/tables.toml": {"title", "what", "because", "noun", "lacking"},
    "forecasting/refusals.toml": {"because", "instead"},
    "planning/figures.toml": {"what", "how", "as_planned", "above", "below"},
    "probing/causes.toml": {"title", "what", "because", "noun", "lacking"},
    "refereeing/words.toml": {"why"},
}
"""Keys of such tables that hold sentences."""


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
    for path in sorted((package / "config" / "presets").glob("*.toml")):
        about = tomllib.loads(path.read_text(encoding="utf-8")).get("about", {})
        for key in ("summary", "val_loss_source", "took"):
            if key in about:
                found.add(about[key], path.name)
    settings = package / "config" / "settings.toml"
    for group in tomllib.loads(settings.read_text(encoding="utf-8")).values() if settings.exists() else ():
        for about in group.values():
            found.add(about["meaning"], settings.name)
    for place, keys in SENTENCES_IN.items():
        table = package / place
        for about in _tables(tomllib.loads(table.read_text(encoding="utf-8")) if table.exists() else {}):
            for key in about.keys() & keys:
                if isinstance(about[key], str):
                    found.add(about[key], table.name)
    for sentence in page_strings().values() if (package / "page").exists() else ():
        found.add(sentence, "strings.toml")
    glossary = package / "explanation" / "glossary.md"
    for term in parse_terms(glossary.read_text(encoding="utf-8")) if glossary.exists() else ():
        for sentence in (term.title, *term.meaning):
            found.add(sentence.msgid, glossary.name)
    if (package / "diagnosis").exists():
        sentences = [words[part] for words in WORDS.values() for part in SENTENCES if part in words]
        for sentence in (*sentences, *(message.msgid for table in (LACKS, FINE) for message in table.values())):
            _take_sentence(sentence, "codes.toml", found)
        for paragraph in (each for page in pages() for each in paragraphs(page.text)):
            if not is_literal(paragraph):
                found.add(paragraph, "pages.md")
    return found


def _tables(tree: dict) -> Iterator[dict]:
    """A table of a TOML file, and all tables below it."""
    yield tree
    for each in tree.values():
        if isinstance(each, dict):
            yield from _tables(each)


def needs_translation(sentence: str) -> bool:
    """A sentence that is all placeholder and punctuation, without a counted noun, is the same in every language."""
    parts = string.Formatter().parse(sentence)
    return any(any(letter.isalpha() for letter in text) or " " in (spec or "") for text, _, spec, _ in parts)


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


def is_error(problem: str) -> bool:
    """A changed sentence leaves its old translation behind and is shown in English until it has a new one: both are
    counted, and are errors for a release (NANOLENS_RELEASE=1). Placeholders that differ always are."""
    is_waiting = problem.removeprefix("hi: ").startswith(("missing: ", "stale: "))
    return bool(os.environ.get("NANOLENS_RELEASE")) or not is_waiting


def _indent(sentence: str) -> int:
    return len(sentence) - len(sentence.lstrip(" "))


def _take_messages(tree: ast.Module, name: str, found: Collected) -> None:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("msg", "Message")):
            continue
        where = f"{name}:{node.lineno}"
        if node.func.id == "Message":
            if name not in FROM_TABLES:
                found.faults.append(f"{where}: a Message is made with msg(…), so that its sentence can be collected")
            continue
        first = node.args[0] if node.args else None
        if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            found.faults.append(f"{where}: the sentence of msg(…) must be a literal")
            continue
        _take_message(first.value, node, where, found)


def _take_message(sentence: str, call: ast.Call, where: str, found: Collected) -> None:
    wanted = _take_sentence(sentence, where, found)
    if wanted is None:
        return
    values, given = len(call.args) - 1, {keyword.arg for keyword in call.keywords}
    if None not in given and (values != len(wanted) if values else given != set(wanted)):
        found.faults.append(
            f"{where}: the sentence has {list(wanted)}, the call gives {values or sorted(map(str, given))}"
        )


def _take_sentence(sentence: str, where: str, found: Collected) -> dict[str, str] | None:
    """Its placeholders; None where it cannot be read."""
    try:
        wanted = placeholders(sentence)
    except ValueError as error:
        found.faults.append(f"{where}: {error}: {sentence!r}")
        return None
    for kind in set(wanted.values()) - KINDS:
        found.faults.append(f"{where}: there is no kind {kind!r}: {sentence!r}")
    found.add(sentence, where)
    return wanted


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
        print(
            json.dumps(
                {sentence: "" for sentence in said.sentences if sentence not in have}, ensure_ascii=False, indent=0
            )
        )
        return 0
    if "--fill" in arguments:
        _fill("hi", Path(arguments[arguments.index("--fill") + 1]), said.sentences)
        return 0
    chosen = arguments or [lang for lang in LANGUAGES if lang != "en"]
    problems = said.faults + [
        f"{lang}: {problem}" for lang in chosen for problem in faults_of(said.sentences, catalogue(lang))
    ]
    print("\n".join(problems) or f"{len(said.sentences)} sentences, all there in {', '.join(chosen)}")
    return 1 if any(is_error(problem) for problem in problems) else 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
