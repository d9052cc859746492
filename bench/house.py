"""The figures of the house: how much code there is, how much of it one answer walks through, and what has crept in.

    python bench/house.py                                  # a table in plain text
    python bench/house.py --markdown                       # the same for a page
    python bench/house.py --write docs/architecture.md     # replaces what stands between the two markers there

The package measured is the one that `import nanolens` finds. Lines are physical lines, as `wc -l` counts them. The walk
is `nanolens diagnose` on the log lines that the README shows: a file is on it when one of its functions was entered. A
constant has two values when two modules give one UPPER_CASE name differently written values; a module's own affair
starts with an underscore and is not looked at.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import inspect
import io
import math
import os
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

PACKAGE_NAME = "nanolens"

# What a newcomer learns in an afternoon: modules or folders of the package, and what below them is left out.
CORE = ("config", "record", "sizing", "model", "training", "data/store", "data/batches", "data/token_files")
NOT_CORE = ("training/distributed",)

AT_MOST = {
    "lines": 38_000,
    "files": 190,
    "core lines": 9_000,
    "files on the walk of diagnose": 50,
    "lines of those files": 7_500,
    "imports of the package inside functions": 120,
    "uses of Any": 120,
    "# fmt: skip": 20,
    "constants with two values": 0,
}

EACH_MODULE_HAS_ITS_OWN = {"TABLE", "BAR"}  # of the log formats

BEGIN, END = "<!-- house: begin -->", "<!-- house: end -->"


@dataclass(frozen=True)
class Source:
    path: str  # within the package, with forward slashes
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


@dataclass(frozen=True)
class Figure:
    name: str
    value: int

    @property
    def target(self) -> int | None:
        return AT_MOST.get(self.name)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        target = "" if self.target is None else "none" if self.target == 0 else f"at most {self.target:,}"
        verdict = "" if self.target is None else "met" if self.value <= self.target else "not yet"
        return self.name, f"{self.value:,}", target, verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of plain text")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace what stands between the markers of FILE")
    given = parser.parse_args()
    package = package_folder()
    sources = read_sources(package)
    figures, notes = measured(package, sources)
    if given.write:
        write_between_markers(given.write, as_markdown(figures, notes))
    else:
        print(as_markdown(figures, notes) if given.markdown else as_text(figures, notes))


def package_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE_NAME)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PACKAGE_NAME} cannot be imported: pip install -e . here, or set PYTHONPATH")
    return Path(spec.origin).parent


def read_sources(package: Path) -> list[Source]:
    paths = sorted(package.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    names = [path.relative_to(package).as_posix() for path in paths]
    return [Source(name, text, ast.parse(text)) for name, text in zip(names, texts, strict=True)]


def measured(package: Path, sources: list[Source]) -> tuple[list[Figure], list[tuple[str, list[str]]]]:
    """The figures, and the lists that belong to them: a heading with its items."""
    by_path = {source.path: source for source in sources}
    walked = functions_entered(package)
    files_walked = {path for path, _, _ in walked}
    lengths = sorted(length for source in sources for length in function_lengths(source.tree))
    two_values = constants_with_two_values(sources)
    figures = [
        Figure("lines", sum(source.lines for source in sources)),
        Figure("files", len(sources)),
        Figure("core lines", sum(source.lines for source in sources if is_core(source.path))),
        Figure("files on the walk of diagnose", len(files_walked)),
        Figure("lines of those files", sum(by_path[path].lines for path in files_walked)),
        Figure("functions entered on that walk", len(walked)),
        Figure("imports of the package inside functions", sum(count_late_imports(source.tree) for source in sources)),
        Figure("uses of Any", sum(count_any(source.tree) for source in sources)),
        Figure("# fmt: skip", sum(source.text.count("# fmt: skip") for source in sources)),
        Figure("functions", len(lengths)),
        Figure("median length of a function, lines", statistics.median_low(lengths)),
        Figure("95th percentile of that length", lengths[math.ceil(0.95 * len(lengths)) - 1]),
        Figure("constants with two values", len(two_values)),
    ]
    largest = sorted(sources, key=lambda source: -source.lines)[:10]
    absent = [place for place in CORE if not any(_is_at(source.path, place) for source in sources)]
    notes = [
        ("Largest files", [f"{source.path} {source.lines:,}" for source in largest]),
        ("Constants with two values", two_values),
        ("Core paths that do not exist", absent),
    ]
    return figures, [(title, items) for title, items in notes if items]


# --- the walk


def functions_entered(package: Path) -> set[tuple[str, str, int]]:
    """(file, qualified name, line) of each function of the package that ran while the README's log was diagnosed."""
    inside: dict[CodeType, tuple[str, str, int]] = {}
    prefix = f"{package}{os.sep}"

    def on_call(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in inside and code.co_filename.startswith(prefix) and _is_function(code):
            path = Path(code.co_filename).relative_to(package).as_posix()
            inside[code] = path, code.co_qualname, code.co_firstlineno

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as answer:
        log = Path(folder, "train.log")
        log.write_text(readme_log(package.parent / "README.md"), encoding="utf-8")
        os.environ["NANOLENS_CACHE"] = folder  # nothing kept on this machine may lengthen the walk
        main_of_package = importlib.import_module(f"{PACKAGE_NAME}.cli").main
        sys.setprofile(on_call)
        try:
            code = main_of_package(["diagnose", str(log), "--lang=en"])
        finally:
            sys.setprofile(None)
    if code != 0 or not answer.getvalue().strip():
        raise SystemExit(f"nanolens diagnose ended with {code} and said {answer.getvalue()!r}: no walk to count")
    return set(inside.values())


def _is_function(code: CodeType) -> bool:
    """Not the body of a module or a class, which an import runs, nor a comprehension, which newer Pythons inline."""
    is_body = not code.co_flags & inspect.CO_OPTIMIZED
    return not is_body and (code.co_name == "<lambda>" or not code.co_name.startswith("<"))


def readme_log(readme: Path) -> str:
    """The first code block of the README whose lines are those of a nanoGPT log."""
    blocks: list[str] = re.findall(r"^```\w*\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        if re.match(r"(iter|step) \d+: ", block):
            return block
    raise SystemExit(f"{readme.name} shows no lines of a log that could be diagnosed")


# --- what the syntax tree tells


def is_core(path: str) -> bool:
    return any(_is_at(path, each) for each in CORE) and not any(_is_at(path, each) for each in NOT_CORE)


def _is_at(path: str, place: str) -> bool:
    return path == f"{place}.py" or path.startswith(f"{place}/")


def function_lengths(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def count_late_imports(node: ast.AST, is_inside: bool = False) -> int:
    """Import statements of the package itself that stand in a function; those for type checkers never run."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return 0
    if isinstance(node, ast.Import):
        return int(is_inside and any(alias.name.split(".")[0] == PACKAGE_NAME for alias in node.names))
    if isinstance(node, ast.ImportFrom):
        return int(is_inside and (node.level > 0 or (node.module or "").split(".")[0] == PACKAGE_NAME))
    is_inside = is_inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return sum(count_late_imports(child, is_inside) for child in ast.iter_child_nodes(node))


def count_any(tree: ast.Module) -> int:
    names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    return names.count("Any") + names.count("typing.Any")


def constants_with_two_values(sources: list[Source]) -> list[str]:
    """One line for each UPPER_CASE name that two modules give different values."""
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)  # name -> (value, where it stands)
    for source in sources:
        for name, value in constants_of(source.tree):
            seen[name].append((value, f"{value} in {source.path}"))
    return [
        f"{name}: " + "; ".join(where for _, where in found)
        for name, found in sorted(seen.items())
        if name not in EACH_MODULE_HAS_ITS_OWN and any(value != found[0][0] for value, _ in found)
    ]


def constants_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names with their values as they are written."""
    for node in tree.body:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in _paired(target, node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]*", target.id):
                yield target.id, ast.unparse(value)


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`A, B = 1, 2` as A = 1 and B = 2."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


# --- how it is shown


def as_text(figures: list[Figure], notes: list[tuple[str, list[str]]]) -> str:
    rows = [figure.cells for figure in figures]
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    form = f"{{:{wide[0]}}}  {{:>{wide[1]}}}  {{:{wide[2]}}}  {{}}"
    lines = [form.format(*row).rstrip() for row in rows]
    for title, items in notes:
        lines += ["", f"{title}:", *(f"  {_short(item)}" for item in items)]
    return "\n".join(lines)


def as_markdown(figures: list[Figure], notes: list[tuple[str, list[str]]]) -> str:
    rows = [f"| {' | '.join(figure.cells)} |" for figure in figures]
    lines = ["| figure | now | target | |", "|---|---:|---|---|", *rows]
    for title, items in notes:
        lines += ["", f"{title}: " + ", ".join(f"`{_short(item)}`" for item in items) + "."]
    return "\n".join(lines)


def _short(item: str, most: int = 150) -> str:
    return item if len(item) <= most else f"{item[: most - 2]} …"


def write_between_markers(page: Path, table: str) -> None:
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} needs the two lines between which the figures go:\n{BEGIN}\n{END}")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
