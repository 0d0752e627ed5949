"""Raises an exception before any chosen statement of the client, as a signal handler may do.

`instrument()` comes before the first import of the client: the statements of its functions then
count themselves. It is for a separate process.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any


class Interrupted(Exception):
    """Raised by a signal handler."""


class Statements:
    """The statements that were executed since `run` began, and the one that raises."""

    def __init__(self) -> None:
        self.seen: list[int] | None = None
        self.at: int | None = None
        self.count = 0
        self._thread = get_ident()

    def hit(self, number: int) -> None:
        if self.seen is None or get_ident() != self._thread:
            return  # signal handlers run in the main thread
        self.seen.append(number)
        if len(self.seen) - 1 == self.at:
            raise Interrupted(PLACES[number])

    def run(self, call: Callable[[], object], at: int | None = None) -> list[int]:
        """Run a call; the statements that it has executed. The one with the index `at` raises."""
        seen: list[int] = []
        self.seen, self.at = seen, at
        try:
            call()
        except Interrupted:
            pass
        finally:
            self.seen = None
        return seen


PLACES: list[str] = []
STATEMENTS = Statements()


class _Counting(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self._path = path
        self._depth = 0

    def _counted(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            PLACES.append(f"{self._path}:{statement.lineno}")
            call = ast.Expr(
                ast.Call(
                    ast.Name("__hit__", ast.Load()), [ast.Constant(len(PLACES) - 1)], keywords=[]
                )
            )
            found += [ast.copy_location(call, statement), statement]
        return found

    def generic_visit(self, node: ast.AST) -> ast.AST:
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self._depth += function
        super().generic_visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list) and body:
                    setattr(node, name, self._counted(body))
        self._depth -= function
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        tree = ast.parse(self.get_data(self.path), self.path)
        return compile(
            ast.fix_missing_locations(_Counting(self.path).visit(tree)), self.path, "exec"
        )


class _Finder:
    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith(self._prefixes):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def instrument(*prefixes: str) -> None:
    """Count the statements of modules whose names begin with these words."""
    builtins.__hit__ = STATEMENTS.hit  # type: ignore[attr-defined]
    finder: Any = _Finder(prefixes)
    sys.meta_path.insert(0, finder)


def chosen(seen: list[int]) -> list[int]:
    """The indexes of the first and the last execution of each statement."""
    first = {number: index for index, number in reversed(list(enumerate(seen)))}
    last = {number: index for index, number in enumerate(seen)}
    return sorted({*first.values(), *last.values()})
