"""nanoGPT's config files are Python; we read them, and never run them.

Assignments of literals, arithmetic on them, and names assigned earlier are understood. An import or a computed name of a run
is passed over with a note. A setting that matters and is computed by other code is a fault that names the line: to guess it
would be to train another model than the one that was asked for.
"""

from __future__ import annotations

import ast
import operator
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO

from nanolens.config.fields import settings
from nanolens.errors import Fault
from nanolens.message import Message, msg

COSMETIC = frozenset(("wandb_project", "wandb_run_name", "wandb_log"))
"""Settings that name things and change no number of the training."""

_LARGEST = 10**18  # larger numbers than any setting holds; keeps `9**9**9` from running for a week
_OPERATORS: Mapping[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}  # fmt: skip


@dataclass
class PythonConfig:
    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[Message] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)


class NotLiteral(Exception):
    """An expression that only running the file would give a value."""


def read_python(text: str, name: str) -> PythonConfig:
    read = PythonConfig()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        read.faults.append(Fault(msg("{file:code} is not Python: {problem}", file=name, problem=str(error)), where=_line(name, line)))
        return read
    read.comments = _comments(text)
    for statement in body:
        try:
            _take(statement, read, name)
        except RecursionError:
            read.faults.append(Fault(msg("an expression is nested too deeply to be read"), where=_line(name, statement.lineno)))
    return read


def _take(statement: ast.stmt, read: PythonConfig, name: str) -> None:
    where = _line(name, statement.lineno)
    match statement:
        case ast.Assign(targets=[ast.Name(id=key)], value=value):
            _assign(key, value, statement.lineno, read, name)
        case ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value):
            _assign(key, value, statement.lineno, read, name)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            pass  # a docstring
        case ast.Import() | ast.ImportFrom():
            read.notes.append(msg("{where}: an import was passed over: nanolens reads config files and does not run them", where=where))
        case _:
            touched = sorted({node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)})
            meant = [key for key in touched if key in settings() and key not in COSMETIC]
            if meant:
                read.faults.extend(_not_literal(key, where) for key in meant)
            else:
                read.notes.append(msg("{where}: passed over: nanolens reads config files and does not run them", where=where))


def _assign(key: str, value: ast.expr, line: int, read: PythonConfig, name: str) -> None:
    try:
        read.values[key] = _value(value, read.values)
        read.lines[key] = line
    except NotLiteral:
        read.values.pop(key, None)
        if key in settings() and key not in COSMETIC:
            read.faults.append(_not_literal(key, _line(name, line)))
        else:
            note = msg("{where}: {key:code} is computed by code, which nanolens does not run", where=_line(name, line), key=key)
            read.notes.append(note)
    except (ArithmeticError, TypeError, ValueError) as error:
        read.faults.append(Fault(msg("{key:code} cannot be computed: {problem}", key=key, problem=str(error)), where=_line(name, line)))


def _not_literal(key: str, where: Message) -> Fault:
    return Fault(
        msg("{key:code} is set by code, and nanolens does not run config files", key=key),
        where=where,
        fix=msg("write its value as a number or a text, or give {option:code}", option=f"--{key}=VALUE"),
    )


def _value(node: ast.expr, known: Mapping[str, object]) -> object:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, known))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _apply(op, _value(left, known), _value(right, known))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, known) for item in items]
        case _:
            raise NotLiteral


def _apply(op: ast.operator, left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add):
        return left + right
    if not all(isinstance(side, (int, float)) for side in (left, right)):
        raise NotLiteral
    if isinstance(op, ast.Pow) and abs(right) > 64:  # type: ignore[arg-type]
        raise ValueError("an exponent above 64")
    result = _OPERATORS[type(op)](left, right)
    if isinstance(result, complex) or abs(result) > _LARGEST:
        raise ValueError("the result is out of range")
    return result


def _comments(text: str) -> list[str]:
    try:
        return [token.string.lstrip("# ") for token in tokenize.generate_tokens(StringIO(text).readline) if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):
        return []


def _line(name: str, line: int) -> Message:
    return msg("{file:code} line {line:count}", file=name, line=line)
