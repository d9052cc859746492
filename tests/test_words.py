"""Every sentence for a user exists in every language that ships, says the same values, and is collected from the source
itself."""

from __future__ import annotations

import pytest

from nanolens.message import KINDS
from nanolens.show import words
from tools.locale_check import Collected, _take_messages, collect, faults_of, is_error, needs_translation


@pytest.fixture(scope="module")
def collected() -> Collected:
    return collect()


def test_the_package_is_read(collected: Collected) -> None:
    assert len(collected.sentences) > 200
    assert "number of transformer blocks" in collected.sentences


def test_every_message_keeps_the_rules(collected: Collected) -> None:
    assert collected.faults == []


@pytest.mark.parametrize("lang", [lang for lang in words.LANGUAGES if lang != "en"])
def test_every_sentence_is_translated_and_none_is_stale(
    collected: Collected, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing or stale translation is counted aloud, and fails only for a release; anything else that is wrong always
    fails."""
    problems = list(faults_of(collected.sentences, words.catalogue(lang)))
    errors = [problem for problem in problems if is_error(problem)]
    assert errors == [], f"{len(errors)} sentences; `python tools/locale_check.py` lists them"
    if problems:
        with capsys.disabled():
            print(
                f"\n{lang}: {len(problems)} sentences lack a translation or have one too many; `python tools/locale_check.py` lists them"
            )


def test_a_missing_translation_is_an_error_only_for_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NANOLENS_RELEASE", raising=False)
    assert not is_error("missing: a.py:1: 'loss'") and not is_error("hi: stale: 'losses'")
    assert is_error("other placeholders: 'a' -> 'b'")
    monkeypatch.setenv("NANOLENS_RELEASE", "1")
    assert is_error("hi: missing: a.py:1: 'loss'")


def test_hindi_is_written_in_devanagari() -> None:
    """But for formulas, and single words that engineers say in English."""
    latin = [
        english
        for english, hindi in words.catalogue("hi").items()
        if not any("\u0900" <= letter <= "\u097f" for letter in hindi)
        and not (english == hindi and (len(english) < 24 or any(sign in english for sign in ("*", " x ", " / "))))
    ]
    assert latin == []


def test_the_catalogue_is_sorted_so_that_two_people_can_add_to_it() -> None:
    keys = list(words.catalogue("hi"))
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('msg(f"step {k}")', "literal"),
        ("msg(sentence)", "literal"),
        ('msg("step {k:stps}", k=1)', "no kind"),
        ('msg("step {k:count}", j=1)', "the call gives"),
        ('msg("step {k")', "expected"),
        ('Message("step")', "made with msg"),
    ],
)
def test_a_broken_message_is_noticed(source: str, fault: str) -> None:
    import ast

    found = Collected()
    _take_messages(ast.parse(source), "somewhere.py", found)
    assert len(found.faults) == 1 and fault in found.faults[0]


def test_what_is_missing_stale_or_untrue_is_noticed() -> None:
    sentences = {"a loss of {x:nats}": "a.py:1", "two {n:count}": "a.py:2"}
    translations = {"a loss of {x:nats}": "{x:rate} का loss", "gone": "गया"}
    assert [problem.split(":")[0] for problem in faults_of(sentences, translations)] == [
        "missing",
        "other placeholders",
        "stale",
    ]


def test_a_sentence_without_words_needs_no_translation() -> None:
    assert not needs_translation("{where:code}: {n:count}")
    assert needs_translation("in {where:code}")


def test_every_kind_has_a_form() -> None:
    pair = {"seconds_range": (1.0, 2.0), "nats_range": (1.0, 2.0)}
    plain = {kind for kind in KINDS if words.show(pair.get(kind, 0.123456), kind) == str(pair.get(kind, 0.123456))}
    assert plain == {"text", "code"}
