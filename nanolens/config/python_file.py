"""nanoGPT's config files are Python; we read them, and never run them.

Assignments of literals, arithmetic on them, and names assigned earlier are understood. An import or a computed name of
a run is passed over with a note. A setting that matters and is computed by other code is a fault of that line."""

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

COSMETIC = frozenset(("wandb_project", "wandb_run_name", "wandb_log"))  # they change no number of the training

_LARGEST = 10**18  # larger numbers than any setting holds; keeps `9**9**9` from running for a week
_OPERATORS: Mapping[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


@dataclass
class ConfigFile:
    """What any config file says: every key, known to nanolens or not."""

    values: dict[str, object] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)  # "config.toml line 4", by key
    comments: list[str] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)  # what was passed over
    faults: list[Fault] = field(default_factory=list)


class NotLiteral(Exception):
    """An expression that only running the file would give a value."""


def read_python(text: str, name: str) -> ConfigFile:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = msg("{file:code} is not valid Python: {problem}", name, str(error))
        return ConfigFile(faults=[Fault(what, where=_line(name, getattr(error, "lineno", None) or 1))])
    read = ConfigFile(comments=_comments(text))
    for statement in body:
        where = _line(name, statement.lineno)
        try:
            _take(statement, read, where)
        except RecursionError:
            read.faults.append(Fault(msg("an expression is too deeply nested to read"), where=where))
    return read


def _take(statement: ast.stmt, read: ConfigFile, where: Message) -> None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=key)], value=value):
            _assign(key, value, read, where)
        case ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value):
            _assign(key, value, read, where)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            pass  # a docstring
        case ast.Import() | ast.ImportFrom():
            read.notes.append(msg("{where}: import skipped: nanolens reads config files and does not run them", where))
        case _:
            names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            touched = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            if meant := sorted(filter(_matters, touched)):
                read.faults.extend(_not_literal(key, where) for key in meant)
            else:
                read.notes.append(msg("{where}: skipped: nanolens reads config files and does not run them", where))


def _assign(key: str, value: ast.expr, read: ConfigFile, where: Message) -> None:
    try:
        read.values[key] = _value(value, read.values)
        read.where[key] = str(where)
    except NotLiteral:
        read.values.pop(key, None)
        if _matters(key):
            read.faults.append(_not_literal(key, where))
        else:
            read.notes.append(msg("{where}: {key:code} is computed by code, which nanolens does not run", where, key))
    except (ArithmeticError, TypeError, ValueError) as error:
        read.faults.append(Fault(msg("{key:code} cannot be computed: {problem}", key, str(error)), where=where))


def _matters(key: str) -> bool:
    return key in settings() and key not in COSMETIC


def _not_literal(key: str, where: Message) -> Fault:
    fix = msg("write its value as a number or text, or give {option:code}", f"--{key}=VALUE")
    return Fault(msg("{key:code} is set by code, and nanolens does not run config files", key), where, fix)


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
        tokens = list(tokenize.generate_tokens(StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]


def _line(name: str, line: int) -> Message:
    return msg("{file:code} line {line:count}", name, line)
