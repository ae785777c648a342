"""kubernetes-asyncio without the 700 classes of its models, which its packages import and nothing here uses.

They take 0.3 s and 33 MB of each process. Without them the library is its API client and its loader of kubeconfigs:
0.09 s and 4.4 MB, with what those import of other libraries.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

_LIBRARY: Final = "kubernetes_asyncio"
_EMPTY: Final = (_LIBRARY, f"{_LIBRARY}.client", f"{_LIBRARY}.client.models")
"""The packages whose own code is left out."""
_modules: dict[str, ModuleType] = {}


@contextmanager
def without_models() -> Iterator[None]:
    """What is imported of the library inside is a copy of its own: who imports the whole library gets another.

    Raises ImportError if the library is not installed. Not for several threads.
    """
    others = _take_modules()
    sys.modules.update(_modules or _make_packages())
    try:
        from kubernetes_asyncio.client.api_client import ApiClient
        from kubernetes_asyncio.client.configuration import Configuration

        vars(sys.modules[f"{_LIBRARY}.client"]).update(ApiClient=ApiClient, Configuration=Configuration)
        yield
        _modules.update(_take_modules())
    finally:
        _take_modules()  # of an import that failed, nothing is kept
        sys.modules.update(others)


def _take_modules() -> dict[str, ModuleType]:
    """The library's modules as far as they are imported, which they are not any more."""
    names = [name for name in sys.modules if name.partition(".")[0] == _LIBRARY]
    return {name: sys.modules.pop(name) for name in names}


def _make_packages() -> dict[str, ModuleType]:
    spec = importlib.util.find_spec(_LIBRARY)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{_LIBRARY} is not installed", name=_LIBRARY)
    [root] = spec.submodule_search_locations
    packages = {}
    for name in _EMPTY:
        packages[name] = package = ModuleType(name)
        package.__path__ = [root + name.removeprefix(_LIBRARY).replace(".", "/")]
    return packages
