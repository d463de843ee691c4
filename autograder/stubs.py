"""Stubs are cut from the solutions: the marked regions go, all other text stays as it is."""
from __future__ import annotations

import ast
import re

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
_MARKER = re.compile(r"^(?P<indent>\s*)###\s*(?P<kind>BEGIN|END) SOLUTION\s*$")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class PublishError(Exception):
    """Something in the course's own files, or a folder to write to, is not as it must be."""


def cut(source: str, module: str) -> str:
    """The stub of a solutions module: each marked region becomes one `raise NotImplementedError`.

    Raises PublishError, with the line, for a marker without its partner, one region inside another, an empty region
    and a stub that would not be Python.
    """
    lines = source.splitlines()
    tree = _parse(source, f"solutions/{module}.py")
    kept, done = [], 0
    for begin, end, indent in _regions(lines, module):
        kept += lines[done:begin]
        owner = _owner(tree, begin + 1) or module
        kept.append(f'{indent}raise NotImplementedError("{owner}: write this in mha_lab/{module}.py")')
        done = end + 1
    stub = "\n".join(kept + lines[done:]) + "\n"
    _parse(stub, f"the stub of solutions/{module}.py")
    return stub


def answer(source: str, name: str) -> str:
    """The text of one function or class of a solutions module, without the markers. LookupError if it has none."""
    for node in ast.parse(source).body:
        if isinstance(node, _DEFINITIONS) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = source.splitlines()[first - 1:node.end_lineno]
            return "\n".join(line for line in lines if not _MARKER.match(line)) + "\n"
    raise LookupError(f"there is no solution of {name!r}")


def _regions(lines: list[str], module: str) -> list[tuple[int, int, str]]:
    """(first line, last line, indentation) of every region, markers included, from 0."""
    found, opened = [], None
    for number, line in enumerate(lines):
        match = _MARKER.match(line)
        where = f"solutions/{module}.py, line {number + 1}"
        if match is None:
            if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
                raise PublishError(f"{where}: a marker stands alone on its line, written {BEGIN} or {END}")
        elif match["kind"] == "BEGIN":
            if opened is not None:
                raise PublishError(f"{where}: a region begins inside the one that began in line {opened + 1}")
            opened = number
        elif opened is None:
            raise PublishError(f"{where}: {END} without a {BEGIN} before it")
        else:
            if not any(text.strip() for text in lines[opened + 1:number]):
                raise PublishError(f"{where}: the region that ends here is empty")
            found.append((opened, number, _MARKER.match(lines[opened])["indent"]))
            opened = None
    if opened is not None:
        raise PublishError(f"solutions/{module}.py, line {opened + 1}: {BEGIN} without an {END} after it")
    return found


def _owner(tree: ast.AST, line: int) -> str:
    """The dotted name of the definition around a line: "split_heads", "MultiHeadAttention.forward", or ""."""
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "lineno", line) <= line <= getattr(node, "end_lineno", line):
            inner = _owner(node, line)
            if isinstance(node, _DEFINITIONS):
                return f"{node.name}.{inner}" if inner else node.name
            if inner:
                return inner
    return ""


def _parse(source: str, what: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as e:
        raise PublishError(f"{what}, line {e.lineno}: {e.msg}") from None
