"""The import without models, each in a fresh interpreter."""

import subprocess
import sys

import pytest

_PROGRAMS = {
    "no models": """
import coil.kube.client
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio.client.models")]
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio.client.api")]
assert "yaml" not in sys.modules
assert "urllib3" not in sys.modules
""",
    "basic authentication all the same": """
from coil.kube.library import Configuration
configuration = Configuration()
configuration.username, configuration.password = "a", "b"
assert configuration.get_basic_auth_token() == "Basic YTpi"
import urllib3
assert urllib3.PoolManager
""",
    "no models with a kubeconfig": """
import asyncio
from pathlib import Path
from coil.kube.access import Access, AccessError
path = Path(sys.argv[1])
path.write_text('{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c"}}],'
                ' "clusters": [{"name": "c", "cluster": {"server": "http://h"}}]}')
access = Access.kubeconfig(path)
asyncio.run(access.read())
assert access.configuration.host == "http://h"
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio.client.models")]
""",
    "the whole library still works afterwards": """
from coil.kube.library import Configuration
import kubernetes_asyncio
from kubernetes_asyncio import client, config, watch
assert client.CoreV1Api and client.models.V1Pod and config.load_kube_config and watch.Watch
assert client.Configuration is Configuration
""",
    "and before": """
import kubernetes_asyncio
from coil.kube.library import Configuration, ConfigException
assert kubernetes_asyncio.client.Configuration is Configuration
assert kubernetes_asyncio.config.ConfigException is ConfigException
""",
}


@pytest.mark.parametrize("program", _PROGRAMS.values(), ids=_PROGRAMS)
def test_import(program: str, tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}", f"{tmp_path}/kubeconfig"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
