"""Kernel modules, loaded through libkmod: what `modprobe` does, without a program for it.

    ensure_modules(names: Sequence[str])             e.g. ("fou", "fou6"), in this order

Links of the kinds ipip and ip6tnl bring their modules themselves; nothing asks for `fou` and `fou6`. A module that is
there already needs neither the library nor a privilege.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from coil.netlink.error import NetlinkError

_LIBRARY: Final = "libkmod.so.2"
_PROBE_IGNORE_COMMAND: Final = 0x4  # enum kmod_probe of libkmod.h: insert it, run no command that modprobe.d may name


Loader: TypeAlias = Callable[[str], None]
"""Loads the module of that name and those that it needs; success if it is there. Raises OSError."""


def load_module(name: str) -> None:
    """A `Loader`, by libkmod, which is opened when it is needed and closed after each module."""
    library = ctypes.CDLL(_LIBRARY)
    for function in ("kmod_new", "kmod_module_get_module"):
        getattr(library, function).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.kmod_new(None, None))
    if context.value is None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    try:
        library.kmod_set_log_priority(context, 0)  # else it writes to standard error itself
        _load(library, context, name)
    finally:
        library.kmod_unref(context)


def _load(library: ctypes.CDLL, context: ctypes.c_void_p, name: str) -> None:
    modules = ctypes.c_void_p()
    _check(library.kmod_module_new_from_lookup(context, name.encode(), ctypes.byref(modules)))
    if modules.value is None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        # A name that is no alias of several has one module; those that it needs are loaded first.
        module = ctypes.c_void_p(library.kmod_module_get_module(modules))
        try:
            insert = library.kmod_module_probe_insert_module
            _check(insert(module, _PROBE_IGNORE_COMMAND, None, None, None, None))
        finally:
            library.kmod_module_unref(module)
    finally:
        library.kmod_module_unref_list(modules)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def ensure_modules(names: Sequence[str], *, load: Loader = load_module, root: Path = Path("/sys/module")) -> None:
    """Have each module in the kernel. Idempotent. Raises NetlinkError that names the module and says what to do."""
    for name in names:
        if (root / name).exists():
            continue
        try:
            load(name)
        except OSError as error:
            raise NetlinkError(f"{_problem(name, error)}; on the node, run `modprobe {name}`") from error


def _problem(name: str, error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"the kernel module {name} is not loaded, and this process may not load it (CAP_SYS_MODULE)"
    if error.errno == errno.ENOENT:
        return f"the kernel module {name} is not loaded, and there is none for {os.uname().release} below /lib/modules"
    return f"the kernel module {name} cannot be loaded: {error.strerror or error}"
