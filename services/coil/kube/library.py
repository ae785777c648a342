"""kubernetes-asyncio without its models.

`import kubernetes_asyncio` runs package initialisers that load some 700 generated model and API classes:
35 MB of memory and 0.4 s, for things that this suite never uses (it decodes into its own structs). What it
does use (configuration, kubeconfig and in-cluster loading) lies in modules that import none of them, but
Python runs a package's initialiser before any of its modules.

So the modules are imported below packages whose initialiser has not run: bare module objects with the
right `__path__`, there only while this module is imported. Afterwards they are taken away again, so that a
later plain `import kubernetes_asyncio` anywhere in the process still gets the whole library.
This costs little over aiohttp alone.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes_asyncio.client.configuration import Configuration
    from kubernetes_asyncio.config.config_exception import ConfigException

__all__ = ["ConfigException", "Configuration", "load_in_cluster", "load_kube_config"]

_ROOT = "kubernetes_asyncio"
_PACKAGES = (_ROOT, f"{_ROOT}.client", f"{_ROOT}.config")


@contextmanager
def _bare_packages() -> Iterator[None]:
    """Within it, the library's packages are importable but not initialised. No effect once it is loaded."""
    if _ROOT in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(_ROOT)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{_ROOT} is not installed")
    location = Path(spec.submodule_search_locations[0])
    for name in _PACKAGES:
        bare = ModuleType(name)
        bare.__path__ = [str(location.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = bare
    try:
        # The loaders ask the package, not the module, for these two names. ApiClient, which would load
        # the models, is named only in the signature of a function that is not called here.
        client = sys.modules[f"{_ROOT}.client"]
        vars(client)["Configuration"] = _attribute("client.configuration", "Configuration")
        vars(client)["ApiClient"] = object
        yield
    finally:
        for name in _PACKAGES:
            del sys.modules[name]


class _WhenUsed(ModuleType):
    """Stands for a module that is imported when it is first asked for something."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _put_off(name: str) -> Iterator[None]:
    """Within it, `import name` costs nothing. No effect once that module is loaded."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = _WhenUsed(name)
    try:
        yield
    finally:
        del sys.modules[name]


def _attribute(module: str, name: str) -> object:
    return getattr(importlib.import_module(f"{_ROOT}.{module}"), name)


# The configuration wants urllib3 for basic authentication only, which no API server has taken for years.
with _put_off("urllib3"), _bare_packages():
    if not TYPE_CHECKING:
        Configuration = _attribute("client.configuration", "Configuration")
        ConfigException = _attribute("config.config_exception", "ConfigException")
    _incluster_config = importlib.import_module(f"{_ROOT}.config.incluster_config")


def load_in_cluster(configuration: "Configuration", *, token: Path, ca: Path, environ: Mapping[str, str]) -> None:
    """Fill `configuration` from a service account's files and KUBERNETES_SERVICE_HOST and _PORT.

    Raises ConfigException or OSError.
    """
    _incluster_config.load_incluster_config(
        client_configuration=configuration,
        try_refresh_token=False,  # its hook goes by the wall clock, which can be set back
        token_filename=str(token),
        cert_filename=str(ca),
        environ=environ,
    )


async def load_kube_config(path: Path, configuration: "Configuration") -> None:
    """Fill `configuration` from the current context of the kubeconfig file at `path`.

    Imported at the first call only: a pod never reads a kubeconfig and need not pay for the YAML parser.
    Raises ConfigException or OSError.
    """
    with _bare_packages():
        loader = importlib.import_module(f"{_ROOT}.config.kube_config")
    await loader.load_kube_config(config_file=str(path), client_configuration=configuration, persist_config=False)
