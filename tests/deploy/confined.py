"""Confines this process by the kernel, as systemd confines a daemon by its unit file.

systemd makes its filters of system calls with the same library. Here they work without systemd and without root, so a
whole cluster can run under them. tests/image runs the units under systemd itself, with all that they ask for.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator

from tests.deploy import units

_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_EQ, _GT, _MASKED_EQ = 4, 6, 7
_PR_SET_NO_NEW_PRIVS = 38
_PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 2, 4, 0o100000
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
_MAX_FAMILIES = 45
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080)


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


Rule = tuple[str, tuple[int, int, int, int] | None, int]
"""A system call, a comparison of one of its arguments, and the error that it then gives. 0: it is allowed."""


def confine(role: str) -> None:
    """Confine this process and its children, as the unit of the role does."""
    service = units.service(role)
    os.umask(int(service["UMask"][0], 8))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    for rules in _denying(service):
        _load(_ALLOW, rules)
    _load(_ERROR | errno.EPERM, [(name, None, 0) for name in units.system_calls(role)])


def _denying(service: dict[str, list[str]]) -> Iterator[list[Rule]]:
    for name in ("MemoryDenyWriteExecute", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"):
        assert service[name] == ["yes"]
    yield [
        ("mmap", (2, _MASKED_EQ, _PROT_WRITE | _PROT_EXEC, _PROT_WRITE | _PROT_EXEC), errno.EPERM),
        ("mprotect", (2, _MASKED_EQ, _PROT_EXEC, _PROT_EXEC), errno.EPERM),
        ("pkey_mprotect", (2, _MASKED_EQ, _PROT_EXEC, _PROT_EXEC), errno.EPERM),
        ("shmat", (2, _MASKED_EQ, _SHM_EXEC, _SHM_EXEC), errno.EPERM),
    ]
    yield [
        ("unshare", None, errno.EPERM),
        ("setns", None, errno.EPERM),
        ("clone3", None, errno.ENOSYS),
        *(("clone", (0, _MASKED_EQ, flag, flag), errno.EPERM) for flag in _NAMESPACES),
    ]
    yield [("sched_setscheduler", (1, _EQ, policy, 0), errno.EPERM) for policy in (1, 2)]
    calls = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "mkdir": 1, "mkdirat": 2}
    yield [(call, (at, _MASKED_EQ, bit, bit), errno.EPERM) for call, at in calls.items() for bit in (0o4000, 0o2000)]
    yield [("personality", (0, _GT, 0, 0), errno.EPERM)]
    allowed = {_FAMILIES[name] for name in service["RestrictAddressFamilies"][0].split()}
    denied = [family for family in range(_MAX_FAMILIES + 1) if family not in allowed]
    rules: list[Rule] = [("socket", (0, _EQ, family, 0), errno.EAFNOSUPPORT) for family in denied]
    yield [*rules, ("socket", (0, _GT, _MAX_FAMILIES, 0), errno.EAFNOSUPPORT)]


def _load(otherwise: int, rules: list[Rule]) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(otherwise)))
    for call, comparison, error in rules:
        number = library.seccomp_syscall_resolve_name(call.encode())
        action = ctypes.c_uint32(_ERROR | error if error else _ALLOW)
        given = (_Comparison * 1)(*([] if comparison is None else [_Comparison(*comparison)]))
        # A call that this processor does not have is refused by the library, and cannot be made.
        library.seccomp_rule_add_array(context, action, number, int(comparison is not None), given)
    assert library.seccomp_load(context) == 0
    library.seccomp_release(context)
