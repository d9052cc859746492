"""docs/tour.md names real functions and files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
STOPS = sorted(set(re.findall(r"`(nanolens/[\w/]+\.py): ([\w.]+)`", re.sub(r"\s+", " ", TOUR))))


def test_the_tour_has_stops():
    assert len(STOPS) > 40


@pytest.mark.parametrize(("file", "name"), STOPS)
def test_every_function_that_the_tour_names_exists(file: str, name: str):
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        body = next((getattr(node, "body", []) for node in body if part in names_of(node)), None)
        assert body is not None, f"{file} has no {name}"


def names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:nanolens|tests)/[\w/]+\.\w+)`", TOUR))))
def test_every_file_that_the_tour_names_exists(path: str):
    assert (ROOT / path).is_file()
