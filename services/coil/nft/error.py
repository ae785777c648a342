"""What can go wrong between us and libnftables."""


class NftError(Exception):
    """The library or the kernel refused. Nothing of what was attempted has happened: it would have been one
    transaction.

    `doing` is what was attempted, `reason` the library's own words.
    """

    def __init__(self, *, doing: str, reason: str) -> None:
        super().__init__(f"{doing}: {reason}")
        self.doing = doing
        self.reason = reason
