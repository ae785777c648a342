"""The plugin's modules, each compiled, and what they take from builtin ones.

The executable has no import system: its frame finds a module in a list, this one, when it is first imported. So every
import, late ones included, must be of a module that is in the list or among the builtin ones; anything else is an
error here, and not a surprise on a node.
"""

import ast
import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from coil_freezer.error import FreezeError

PACKAGE = "coil_cni"
MAIN = f"{PACKAGE}.plugin"


@dataclass(frozen=True)
class Program:
    """`modules`: name → marshalled code object. `builtins`: other module → what is taken from it."""

    modules: Mapping[str, bytes]
    builtins: Mapping[str, frozenset[str]]


def read_program(source: Path) -> Program:
    """Compile the modules in the directory `source`, for the running interpreter, without docstrings or asserts.

    Raises FreezeError for a module that does not compile, and for an import that the executable could not do.
    """
    modules: dict[str, bytes] = {}
    taken: dict[str, set[str]] = {}
    for path in sorted(source.glob("*.py")):
        name = f"{PACKAGE}.{path.stem}"
        try:
            tree = ast.parse(path.read_bytes(), str(path))
            code = compile(tree, f"<{name}>", "exec", dont_inherit=True, optimize=2)
        except (SyntaxError, ValueError) as error:
            raise FreezeError(f"the plugin does not compile: {error}") from error
        if path.stem == "__init__":
            if len(tree.body) > 1:
                raise FreezeError(f"{path} has more than a docstring; it would not be executed")
        elif path.stem != "__main__":
            modules[name] = marshal.dumps(_without_lines(code))
            for module, what in _imports(tree):
                taken.setdefault(module, set()).add(what)
    own = {module for module in taken if module.partition(".")[0] == PACKAGE}
    if missing := (own | {MAIN}) - modules.keys():
        raise FreezeError(f"the plugin lacks the module {', '.join(sorted(missing))}")
    return Program(modules, {module: frozenset(what) for module, what in taken.items() if module not in own})


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name taken from it) for every import that is executed, and every use of one imported as a whole."""
    whole = set()
    for node in _executed(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if "." in alias.name or alias.asname:
                    raise FreezeError(f"the executable knows no import of {alias.name} but by `from`")
                whole.add(alias.name)
    for node in _executed(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            yield node.value.id, node.attr


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those behind `if TYPE_CHECKING`."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _executed(child)


def _without_lines(code: CodeType) -> CodeType:
    """Without the tables of lines and columns, a quarter of what is read at each start; no traceback is printed."""
    constants = tuple(_without_lines(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=constants)
