"""The table of rooms in docs/architecture.md, as a test: who may import whom, and words that a room may not say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nanolens"

EVERY = {"message", "errors"}
ROOMS: dict[str, set[str]] = {
    "message": set(),
    "errors": {"message"},
    "files": EVERY,
    "config": EVERY,
    "record": EVERY | {"files"},
    "sizing": EVERY | {"config"},
    "data": EVERY | {"files", "config"},
    "model": EVERY | {"config"},
    "checkpoint": EVERY | {"files", "data", "config"},
    "train": EVERY | {"files", "data", "model", "checkpoint", "record", "sizing", "config"},
    "analysis": EVERY | {"record", "sizing", "config"},
    "present": EVERY | {"analysis", "record", "config"},
    "interop": EVERY | {"files", "data", "model", "checkpoint", "record", "config"},
}
"""`api`, `cli` and the package's own `__init__` compose the rooms and may use all of them."""

HEAVY = {"torch", "safetensors"}
MAY_USE_TORCH = {"model", "checkpoint", "train"}
ONLY_INSIDE_FUNCTIONS = {
    "rich",
    "starlette",
    "uvicorn",
    "plotly",
    "matplotlib",
    "pyarrow",
    "datasets",
    "gigatoken",
    "rensa",
    "wandb",
    "tensorboardX",
    "trackio",
    "mlflow",
    "pandas",
    "tiktoken",
}
LUMBER = {"utils", "common", "helpers", "misc"}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, *, top_level_only: bool = False) -> list[tuple[str, int]]:
    """Names of the modules that a file imports, with their lines; those under TYPE_CHECKING are only words and do not count."""
    found = []
    for node in _nodes(tree, into_functions=not top_level_only):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "nanolens":
                found += [(f"nanolens.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((node.module, node.lineno))
    return found


def _nodes(node: ast.AST, into_functions: bool):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not into_functions:
            continue
        yield child
        yield from _nodes(child, into_functions)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_file_imports_only_what_its_room_may(path: Path):
    room = room_of(path)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if room in ROOMS:
        for name, line in imports(tree):
            if name.startswith("nanolens."):
                other = name.split(".")[1]
                assert other == room or other in ROOMS[room], f"{path.name}:{line}: {room} may not import {other}"
    for name, line in imports(tree):
        if name.split(".")[0] in HEAVY and room not in MAY_USE_TORCH:
            assert room in ("interop", "api", "cli"), f"{path.name}:{line}: {room} may not know {name}"
    for name, line in imports(tree, top_level_only=True):
        if room not in MAY_USE_TORCH:
            assert name.split(".")[0] not in HEAVY, f"{path.name}:{line}: {name} at the top of a file of {room}"
        assert name.split(".")[0] not in ONLY_INSIDE_FUNCTIONS, f"{path.name}:{line}: {name} belongs inside the function that needs it"


FORBIDDEN_WORDS = {
    "analysis": {"print", "open", "input", "time", "datetime"},
    "train": {"print"},
    "model": {"print"},
    "checkpoint": {"print"},
    "record": {"print"},
    "data": {"print"},
    "sizing": {"print", "open"},
    "interop": {"print"},
}


@pytest.mark.parametrize(
    "path", [path for path in FILES if room_of(path) in FORBIDDEN_WORDS], ids=lambda p: p.relative_to(PACKAGE).as_posix()
)
def test_a_room_does_not_say_the_words_of_another(path: Path):
    forbidden = FORBIDDEN_WORDS[room_of(path)]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    main = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    for node in ast.walk(tree):
        if any(node in ast.walk(block) for block in main):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in forbidden, f"{path.name}:{node.lineno}: {node.func.id}()"
    if room_of(path) == "analysis":
        for name, line in imports(tree):
            assert name not in ("time", "datetime", "torch", "rich"), f"{path.name}:{line}: analysis has no clock and no screen: {name}"


def test_no_colour_codes_in_the_loop_or_the_model():
    for path in FILES:
        if room_of(path) in ("train", "model"):
            assert not re.search(r"\\x1b|\\033", path.read_text(encoding="utf-8")), path


def test_there_is_no_lumber_room():
    assert not [path for path in FILES if path.stem in LUMBER]


def test_every_room_is_in_the_table():
    known = set(ROOMS) | {"api", "cli", "__init__", "__main__"}
    assert {room_of(path) for path in FILES} <= known


def test_there_is_no_import_cycle_between_rooms():
    order = list(ROOMS)
    for room, allowed in ROOMS.items():
        later = [other for other in allowed if order.index(other) >= order.index(room)]
        assert not later, f"{room} imports {later}, which come after it"
