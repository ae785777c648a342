"""The result of an ADD, from the format that coild answers in to the version that the runtime asked for.

Between 0.3.1 and 1.0.0 the formats differ in one thing: 1.0.0 dropped `version` ("4" or "6") from the entries of
`ips` (SPEC.md of 1.0.0, "Changes"). coild answers in 1.0.0, see protos/cni.proto.
"""

from coil_cni.error import DECODING_FAILURE, CniError
from coil_cni.json_text import decode


def convert_result(data: bytes, version: str) -> dict[str, object]:
    """Raises CniError(6) when coild's answer is no result."""
    try:
        result = decode(data)
    except ValueError as error:
        raise CniError(DECODING_FAILURE, "coild's result is not JSON", str(error)) from None
    ips = result.get("ips", []) if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(ips, list):
        raise CniError(DECODING_FAILURE, "coild's answer is not a CNI result")
    result["cniVersion"] = version
    for ip in ips:
        if not isinstance(ip, dict) or not isinstance(ip.get("address"), str):
            raise CniError(DECODING_FAILURE, "coild's result has an entry in ips without address")
        ip.pop("version", None)
        if version.startswith("0."):
            ip["version"] = "6" if ":" in ip["address"] else "4"
    return result
