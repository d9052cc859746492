"""The layout of docs/architecture.md as a test: who may import whom, and which files may touch the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nanolens"
FILES = sorted(PACKAGE.rglob("*.py"))

SPINE = ["message", "errors", "files", "config", "record", "sizing", "data", "model", "training"]
"""Each may import those before it. Features build on the spine; the spine knows no feature."""

WORKSHOP = {"data", "model", "training", "session", "measure", "convert", "loaded"}
DOORS = {"cli", "api", "__init__", "__main__"}
"""What trains, and what a user calls: there effects are at home. Everywhere else a file is pure (values in, values out:
no torch, no clock, no disk, no process, no print), unless an effect is its very job and it stands here, with that job."""

EFFECTS = {
    "files.py": "writes files whole",
    "config/load.py": "reads the user's config file",
    "record/__init__.py": "looks which files a run folder has",
    "record/columns.py": "reads events.jsonl and keeps columns in the cache folder",
    "record/progress.py": "watches a run: its folder, its process, the clock",
    "record/read.py": "reads a run folder",
    "record/store.py": "finds, makes and locks run folders",
    "record/write.py": "writes a run folder",
    "logs/open.py": "opens what the user named",
    "logs/reader.py": "reads a log, or a folder of them",
    "logs/watch.py": "runs another program and records what it prints",
    "logs/tracker_files.py": "reads the folders that trackers leave",
    "explanation/subject.py": "opens what the user named, and follows a pipe",
    "comparison/__init__.py": "tells a log with several runs from a name",
    "comparison/rescore.py": "evaluates checkpoints with torch",
    "planning/question.py": "asks this machine and its data",
    "probing/__init__.py": "times the experiments",
    "probing/branches.py": "loads the checkpoint that is probed and trains branches of it",
    "probing/questions.py": "runs a model with torch",
    "refereeing/sources.py": "reads folders of runs, tables and git branches",
    "show/document.py": "asks the terminal for its width",
    "show/lines.py": "prints a training as it goes",
    "show/live.py": "draws a training as it goes",
    "show/runs.py": "says how long ago a run was",
    "show/words.py": "shows an instant in the reader's time zone",
    "page/generator.py": "starts a process that writes text",
    "page/report.py": "reads the scripts of the page, and the date",
    "page/runs.py": "reads run folders as they grow",
    "page/server.py": "serves the page",
    "trackers/libraries.py": "calls the libraries of trackers",
    "trackers/live.py": "starts a process that follows a run",
    "trackers/sender.py": "reads a record and keeps how far a tracker has got",
}

IMPURE_MODULES = set(
    """torch safetensors time datetime os sys subprocess multiprocessing threading asyncio socket select signal tempfile shutil
    mmap psutil urllib.request http.client nanolens.files nanolens.record.columns nanolens.record.read nanolens.record.store
    nanolens.record.write""".split()
)
IMPURE_CALLS = {"print", "open", "input", "exec", "eval"}
IMPURE_METHODS = set(
    """read_text read_bytes write_text write_bytes exists is_file is_dir mkdir unlink glob rglob iterdir stat rename resolve
    touch cwd home""".split()
)
WITH_TORCH = {
    "model",
    "training",
    "measure",
    "convert",
    "loaded.py",
    "comparison/rescore.py",
    "probing/branches.py",
    "probing/questions.py",
}
"""Where torch may be imported. The reading room starts without it: there it is not even imported inside a function."""

OPTIONAL = set(
    """starlette uvicorn matplotlib pyarrow datasets gigatoken rensa wandb tensorboardX trackio mlflow pandas tiktoken
    rich""".split()
)
"""Extras, and what costs time to import: named inside the function that needs them."""

LUMBER = {"utils", "common", "helpers", "misc"}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, *, inside_functions: bool = True) -> Iterator[tuple[str, int]]:
    """Names of the imported modules with their lines; those under TYPE_CHECKING are only words and do not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "nanolens":
            yield from ((f"nanolens.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
        yield from imports(node, inside_functions=inside_functions)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("room", SPINE)
def test_the_spine_knows_no_feature(room: str) -> None:
    allowed = SPINE[: SPINE.index(room) + 1]
    for path in FILES:
        if room_of(path) == room:
            for name, line in imports(parsed(path)):
                other = name.split(".")[1] if name.startswith("nanolens.") else room
                assert other in allowed, f"{relative(path)}:{line}: {room} may not import {other}"


def is_shipped(expression: str) -> bool:
    """A table that ships with the package is part of the code."""
    return "__file__" in expression or "files('nanolens" in expression


def effects(path: Path) -> Iterator[str]:
    """What a file does besides computing, with its lines; `if __name__ == "__main__"` is a door of its own."""
    tree = parsed(path)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    for name, line in imports(tree):
        if any(name == impure or name.startswith(f"{impure}.") for impure in IMPURE_MODULES):
            yield f"line {line}: {name}"
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    shipped = {ast.unparse(node.targets[0]) for node in assigned if is_shipped(ast.unparse(node.value))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"line {node.lineno}: {node.func.id}()"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS:
            of = ast.unparse(node.func.value)
            if of not in shipped and not is_shipped(of):
                yield f"line {node.lineno}: {of}.{node.func.attr}()"


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) not in WORKSHOP | DOORS], ids=relative)
def test_a_file_is_pure_or_its_job_is_an_effect(path: Path) -> None:
    found = list(effects(path))
    if relative(path) in EFFECTS:
        assert found, f"{relative(path)} is pure now: take it off the list"
    else:
        assert not found, f"{relative(path)}: {', '.join(found)}"


def test_the_list_of_effects_names_files_that_exist() -> None:
    gone = EFFECTS.keys() - {relative(path) for path in FILES}
    assert not gone, f"take {gone} off the list, or write the new name"


def test_torch_stays_in_the_workshop() -> None:
    used = set()
    for path in FILES:
        places = {relative(path), relative(path).split("/")[0]} & WITH_TORCH
        for name, line in imports(parsed(path)):
            if name.split(".")[0] in ("torch", "safetensors"):
                assert places, f"{relative(path)}:{line}: {name}"
                used |= places
    assert used == WITH_TORCH, "a place that no longer needs torch"


def test_what_is_optional_or_slow_is_imported_where_it_is_needed() -> None:
    for path in FILES:
        for name, line in imports(parsed(path), inside_functions=False):
            assert name.split(".")[0] not in OPTIONAL, f"{relative(path)}:{line}: {name} at the top of a file"


def test_the_workshop_does_not_print() -> None:
    """But for `if __name__ == "__main__"`."""
    for path in FILES:
        if room_of(path) in ("training", "model", "record", "data", "sizing"):
            body = [node for node in parsed(path).body if not isinstance(node, ast.If)]
            for node in ast.walk(ast.Module(body, [])):
                is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
                assert not is_print, f"{relative(path)}:{node.lineno}"


def test_a_reason_in_an_event_can_be_translated() -> None:
    """`because` is its English form; what an operating system or another program said stands as it is."""
    own = {"Chosen", "CheckpointRefused", "RolledBack", "RanksLost", "Warned"}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in own:
                is_copy = any(
                    keyword.arg is None and "'words'" in ast.unparse(keyword.value) for keyword in node.keywords
                )
                has_words = is_copy or "words" in {keyword.arg for keyword in node.keywords}
                assert has_words, f"{relative(path)}:{node.lineno}"


def test_there_is_no_lumber_room() -> None:
    assert not [path for path in FILES if path.stem in LUMBER]
