"""The plugin as one file: its modules, compiled, in the order in which they can be executed.

The import system looks at the file system some ten times for each module; reading one file and executing the
modules in turn starts the plugin 1.2 ms (of 9) earlier. The launcher does that.
"""

import ast
import hashlib
import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import CodeType

from coil_installer.error import InstallError

PACKAGE = "coil_cni"


@dataclass(frozen=True)
class Bundle:
    """`data` is a marshalled tuple of (module name, code object), imports before importers, `main` last."""

    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:16]


def build_bundle(source: Path) -> Bundle:
    """Compile the modules in the directory `source`, for the running interpreter, without docstrings or asserts.

    Raises InstallError for a module that does not compile and for modules that import each other.
    """
    trees: dict[str, ast.Module] = {}
    for path in sorted(source.glob("*.py")):
        if path.stem == "__main__":
            continue
        name = PACKAGE if path.stem == "__init__" else f"{PACKAGE}.{path.stem}"
        try:
            trees[name] = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            raise InstallError(f"the plugin does not compile: {error}") from error
    try:
        order = TopologicalSorter({name: set(_imports(tree)) for name, tree in trees.items()}).static_order()
        names = [name for name in order if name != f"{PACKAGE}.main"]
        modules = [(name, _compile(name, trees[name])) for name in [*names, f"{PACKAGE}.main"]]
    except CycleError as error:
        raise InstallError(f"modules of the plugin import each other: {error.args[1]}") from error
    except KeyError as error:
        raise InstallError(f"the plugin lacks the module {error}") from error
    return Bundle(marshal.dumps(tuple(modules)))


def _imports(tree: ast.Module) -> Iterator[str]:
    """What must have been executed before. Only the top level counts: deeper imports run later, if at all."""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == PACKAGE:
            yield statement.module or ""


def _compile(name: str, tree: ast.Module) -> CodeType:
    # The file name in tracebacks must not depend on where the sources were: it would change the digest.
    code: CodeType = compile(tree, f"<{name}>", "exec", dont_inherit=True, optimize=2)
    return code
