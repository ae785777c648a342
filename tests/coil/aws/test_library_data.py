"""Of the AWS library's data there is what is called, and that is as the library has it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader, Loader

from coil.aws.ec2 import METHODS, open_session
from coil.aws.library_data import SERVICES, LibraryFiles, cut_endpoints, cut_model

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
MODEL: dict[str, Any] = {
    "version": "2.0",
    "metadata": {"protocol": "ec2"},
    "operations": {
        "DrawNet": {"input": {"shape": "Net"}, "output": {"shape": "Nets"}, "errors": [{"shape": "Torn"}]},
        "SinkShip": {"input": {"shape": "Ship"}},
    },
    "shapes": {
        "Net": {"type": "structure", "members": {"shape": {"shape": "Form"}, "inner": {"shape": "Net"}}},
        "Nets": {"type": "list", "member": {"shape": "Net", "locationName": "item"}},
        "Form": {"type": "string", "enum": ["Ship"]},
        "Torn": {"type": "structure", "members": {}, "exception": True},
        "Ship": {"type": "structure", "members": {}},
    },
}
ENDPOINTS: dict[str, Any] = {
    "version": 3,
    "partitions": [
        {"partition": "one", "regions": {"a-1": {}}, "services": {"ec2": {"endpoints": {"a-1": {}}}, "s3": {}}},
        {"partition": "two", "regions": {}, "services": {}},
    ],
}


def read(path: Path) -> Any:
    """The library's file, whole."""
    return JSONFileLoader().load_file(str(path))


@pytest.fixture(scope="module")
def data() -> Path:
    """The folder that the library has its data in."""
    return Path(Loader.BUILTIN_DATA_PATH)


@pytest.fixture
def files(tmp_path: Path) -> LibraryFiles:
    """Of one operation; the files are below `tmp_path`, in some of the library's places and ways."""
    for name, document in {"ec2/1/service-2": MODEL, "s3/1/service-2": MODEL, "ec2/1/waiters-2": ENDPOINTS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    (tmp_path / "endpoints.json").write_text(json.dumps(ENDPOINTS))
    return LibraryFiles(JSONFileLoader(), ["SinkShip"])


class TestModel:
    def test_an_operation_and_all_that_it_refers_to(self) -> None:
        cut = cut_model(json.dumps(MODEL).encode(), ["DrawNet"])
        assert cut["operations"] == {"DrawNet": MODEL["operations"]["DrawNet"]}
        assert cut["shapes"] == {name: MODEL["shapes"][name] for name in ("Net", "Nets", "Form", "Torn")}
        assert (cut["version"], cut["metadata"]) == (MODEL["version"], MODEL["metadata"])

    def test_an_operation_that_is_not_there(self) -> None:
        with pytest.raises(LookupError, match="MendNet"):
            cut_model(json.dumps(MODEL).encode(), ["DrawNet", "MendNet"])

    def test_ec2s_operations_are_the_librarys_own(self, data: Path) -> None:
        path = max((data / "ec2").iterdir()) / "service-2"
        whole, cut = read(path), LibraryFiles(JSONFileLoader(), METHODS).load_file(str(path))
        assert cut is not None
        assert cut["operations"] == {name: whole["operations"][name] for name in METHODS}
        assert cut["shapes"] == {name: whole["shapes"][name] for name in cut["shapes"]}
        assert cut["metadata"] == whole["metadata"]


class TestEndpoints:
    def test_services_that_are_not_asked_are_left_out(self) -> None:
        cut = cut_endpoints(json.dumps(ENDPOINTS).encode(), SERVICES)
        one, two = ENDPOINTS["partitions"]
        assert cut == {"version": 3, "partitions": [{**one, "services": {"ec2": one["services"]["ec2"]}}, two]}

    def test_partitions_and_regions_are_the_librarys_own(self, data: Path) -> None:
        whole = read(data / "endpoints")
        for partition in whole["partitions"]:
            known = partition["services"]
            partition["services"] = {name: known[name] for name in SERVICES}
        assert cut_endpoints((data / "endpoints.json").read_bytes(), SERVICES) == whole


class TestFiles:
    def test_ec2s_model_and_the_endpoints_are_cut_down(self, files: LibraryFiles, tmp_path: Path) -> None:
        model = files.load_file(str(tmp_path / "ec2/1/service-2"))
        assert model is not None
        assert [*model["shapes"]] == ["Ship"]
        endpoints = files.load_file(str(tmp_path / "endpoints"))
        assert endpoints is not None
        assert [*endpoints["partitions"][0]["services"]] == ["ec2"]

    @pytest.mark.parametrize(("name", "document"), [("s3/1/service-2", MODEL), ("ec2/1/waiters-2", ENDPOINTS)])
    def test_others_are_whole(self, files: LibraryFiles, tmp_path: Path, name: str, document: dict[str, Any]) -> None:
        assert files.load_file(str(tmp_path / name)) == document

    @pytest.mark.parametrize("name", ["ec2/2/service-2", "none/endpoints", "ec2/2/waiters-2"])
    def test_none_is_said_to_be_none(self, files: LibraryFiles, tmp_path: Path, name: str) -> None:
        assert files.load_file(str(tmp_path / name)) is None
        assert not files.exists(str(tmp_path / name))

    def test_what_is_there_is_said_to_be_there(self, files: LibraryFiles, tmp_path: Path) -> None:
        assert files.exists(str(tmp_path / "ec2/1/service-2"))


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("eu-central-1", "https://ec2.eu-central-1.amazonaws.com"),
        ("us-gov-west-1", "https://ec2.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "https://ec2.cn-north-1.amazonaws.com.cn"),
    ],
)
async def test_the_client_finds_ec2_in_each_partition(region: str, endpoint: str) -> None:
    async with open_session().create_client("ec2", region_name=region, **KEYS) as client:
        assert client.meta.endpoint_url == endpoint
        assert client.meta.method_to_api_mapping == {method: name for name, method in METHODS.items()}


async def test_whoever_gives_credentials_is_found() -> None:
    async with open_session().create_client("sts", region_name="eu-central-1", **KEYS) as client:
        assert client.meta.endpoint_url == "https://sts.eu-central-1.amazonaws.com"
        assert "assume_role_with_web_identity" in client.meta.method_to_api_mapping
