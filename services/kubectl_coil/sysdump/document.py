"""What is in a dump, as its file index.json tells. The names of the fields are a contract."""

from datetime import datetime

from coil.page.document import Document


class FileDocument(Document, frozen=True, kw_only=True):
    """`bytes` is 0 where there is no such file; then `error` says why. Both where a file is not whole."""

    name: str
    bytes: int
    error: str


class IndexDocument(Document, frozen=True, kw_only=True):
    """`version` is this command's; `left_out` the nodes that were not asked."""

    version: str
    at: datetime
    files: tuple[FileDocument, ...]
    left_out: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not any(each.error for each in self.files)
