"""What kubectl is told to complete."""

import pytest

from kubectl_coil.completion import complete


@pytest.mark.parametrize(
    ("words", "values", "directive"),
    [
        ([], ["ipam", "status", "trace", "version"], 4),
        (["s"], ["status"], 4),
        (["ipam", ""], ["check", "show"], 4),
        (["status", "--w"], ["--wait"], 4),
        (["trace", "--protocol", "s"], ["sctp"], 4),
        (["trace", "--protocol=s"], ["--protocol=sctp"], 4),
        (["status", "--output="], ["--output=json", "--output=table", "--output=yaml"], 4),
        (["status", "--kubeconfig", ""], [], 0),
        (["status", "--kubeconfig="], [], 0),
        (["nonsense", ""], ["ipam", "status", "trace", "version"], 4),
    ],
)
def test_completions(words: list[str], values: list[str], directive: int) -> None:
    *lines, last = complete(words)
    assert last == f":{directive}"
    found = sorted(line.partition("\t")[0] for line in lines)
    assert found == values


def test_commands_have_descriptions() -> None:
    first, _ = complete(["st"])
    assert first.startswith("status\tShow whether Coil is fine")
