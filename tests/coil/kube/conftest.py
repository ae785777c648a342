from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coil.kube.access import Access
from coil.kube.client import KubeClient
from tests.coil.kube.faulty_server import FaultyServer


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    async with FaultyServer() as running:
        yield running


@pytest.fixture
async def client(server: FaultyServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(Access.kubeconfig(server.write_kubeconfig(tmp_path)), random=lambda: 0.5) as connected:
        yield connected
