"""The scripts of the page, read as text: what they may not say, and what must agree with the server's side."""

from __future__ import annotations

import re

import pytest

from nanolens.page.report import EXPORT, IMPORT, joined, read_assets
from nanolens.page.view import page_strings

ASSETS = {name: body.decode() for name, body in read_assets().items()}
STRINGS = page_strings()
SCRIPTS = {name: text for name, text in ASSETS.items() if name.endswith(".js")}
FORBIDDEN = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "DOMParser",
    "srcdoc",
    "setHTML",
    "http://",
    "https://",
)
TOP = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) ([\w$]+)", re.MULTILINE)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_text_becomes_markup_or_code(name: str) -> None:
    text = SCRIPTS[name].replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert [word for word in FORBIDDEN if word in text] == []


@pytest.mark.parametrize("name", [name for name in ASSETS if name.endswith((".html", ".css"))])
def test_no_inline_script_and_no_address_of_another_host(name: str) -> None:
    text = ASSETS[name]
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\bstyle=|url\(|@import|https?://", text)


def test_every_sentence_that_a_script_asks_for_is_there_and_none_is_idle() -> None:
    asked, open_ended = set(), set()
    for text in SCRIPTS.values():
        asked |= set(re.findall(r"\bt\(\"([\w.]+)\"", text)) | set(
            re.findall(r"[\[,?(:] ?\"([a-z_]+\.[a-z_.]+)\"", text)
        ) & set(STRINGS)
        open_ended |= set(re.findall(r"\bt\(`([a-z_]+\.)\$\{", text))
    assert asked - set(STRINGS) == set()
    idle = {key for key in STRINGS if key not in asked and not any(key.startswith(start) for start in open_ended)}
    assert idle == set()


def test_every_module_that_is_imported_is_there_and_exports_what_is_taken() -> None:
    for name, text in SCRIPTS.items():
        for names, module in re.findall(r"^import \{ ([^}]*) \} from \"\./([\w.]+)\";$", text, re.MULTILINE):
            for wanted in names.split(", "):
                assert re.search(
                    rf"^export (?:async )?(?:function|const|class) {wanted}\b", SCRIPTS[module], re.MULTILINE
                ), f"{name}: {wanted} of {module}"


def test_the_page_fetches_its_modules_at_once() -> None:
    needed = {name for name in SCRIPTS if name not in ("main.js", "report.js")}
    assert set(re.findall(r'modulepreload" href="/page/([\w.]+)"', ASSETS["index.html"])) == needed


def test_the_scripts_of_a_report_can_stand_in_one_file() -> None:
    assets = read_assets()
    whole = joined(assets, "report.js")
    tops = TOP.findall(whole)
    assert sorted(set(tops)) == sorted(tops), "two modules use one name at their top"
    assert not IMPORT.search(whole) and not EXPORT.search(whole)
    assert "EventSource" in whole and whole.index("function el(") < whole.index("fileSource(data)")
