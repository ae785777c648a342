"""The executable `coil`: a script of a few lines, compiled on every start, hence without a word too many."""

from importlib.util import MAGIC_NUMBER
from pathlib import Path

HIDDEN = ".coil"
"""The directory beside the launcher that holds the bundles, named by their digests."""

# -I and -S: no environment, no site, no user or current directory on the path. The check of the magic number
# stands between an upgrade of the node's Python and code objects that it would misread.
_TEXT = """\
#!{interpreter} -IS
import sys, marshal, _frozen_importlib_external
if _frozen_importlib_external.MAGIC_NUMBER != {magic!r}:
    print('{{"cniVersion":"1.0.0","code":999,"msg":"coil was installed for another Python",'
          '"details":"run coil-installer again"}}')
    sys.exit(1)
with open(__file__.rpartition("/")[0] + "/{hidden}/{digest}", "rb") as file:
    modules = marshal.loads(file.read())
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
module.main()
"""


def render_launcher(interpreter: Path, digest: str) -> str:
    """The script for a bundle that was built by the running interpreter."""
    return _TEXT.format(interpreter=interpreter, magic=MAGIC_NUMBER, hidden=HIDDEN, digest=digest)
