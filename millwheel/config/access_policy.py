"""Reads an access policy (docs/security.md) from a TOML file, and follows its changes. Errors name all problems."""

from __future__ import annotations

import base64
import binascii
import logging
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from millwheel.config.errors import ConfigError
from millwheel.errors import Problem, did_you_mean
from millwheel.rpc.access.policy import (
    ALGORITHMS,
    ROLES,
    AccessGrant,
    AccessPolicy,
    RevokedCredentials,
    TokenIssuer,
)

__all__ = ["PolicyFile", "parse_policy", "read_policy"]

log = logging.getLogger("millwheel.security")

_SECTIONS: Final = ("certificate_roles", "grants", "tokens", "revoked", "packages")
_NAME_KINDS: Final = ("certificate:", "unit:", "name:", "token:", "group:")
_KEY_BYTES: Final = 32
_FINGERPRINT_DIGITS: Final = 64


def read_policy(path: Path) -> AccessPolicy:
    """Return the policy in a file. ConfigError lists all problems."""
    return parse_policy(_text_of(path), path)


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError([Problem(str(path), f"the policy cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(path), f"the policy is not UTF-8: {error.reason}")]) from error


def parse_policy(text: str, path: Path) -> AccessPolicy:
    """Return the policy that a TOML text states. ``path`` names it in errors, and its folder resolves file names."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([Problem(str(path), f"the policy is not TOML: {error}")]) from error
    reader = _PolicyReader(path)
    policy = reader.policy(content)
    if reader.problems:
        raise ConfigError(reader.problems)
    return policy


@dataclass(slots=True)
class _PolicyReader:
    """Reads the sections, and collects what is wrong with them."""

    path: Path
    problems: list[Problem] = field(default_factory=list)

    def policy(self, content: Mapping[str, Any]) -> AccessPolicy:
        self._known("", content, _SECTIONS)
        roles = self._value("", content, "certificate_roles", bool, True)
        packages = self._table(content, "packages", ("signers",))
        return AccessPolicy(
            tuple(self._grants(content.get("grants", []))),
            bool(roles),
            self._revoked(self._table(content, "revoked", ("serials", "fingerprints", "token_ids", "principals"))),
            self._tokens(content) if "tokens" in content else None,
            self._signers(packages.get("signers", {})),
            str(self.path),
        )

    def _grants(self, given: Any) -> list[AccessGrant]:
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            self._wrong("grants", "write each grant as [[grants]]")
            return []
        found = []
        for number, one in enumerate(given, 1):
            place = f"grants[{number}]"
            self._known(place, one, ("who", "roles", "topologies"))
            who = self._texts(place, one, "who", required=True)
            roles = self._texts(place, one, "roles", required=True)
            self._kinds(f"{place}.who", who)
            for role in roles:
                if role not in ROLES:
                    self._wrong(f"{place}.roles", f"{role!r} is no role{did_you_mean(role, ROLES)}: {', '.join(ROLES)}")
            topologies = self._texts(place, one, "topologies") or ("*",)
            if "process" in roles and "*" not in topologies:
                self._wrong(f"{place}.topologies", "the role process holds for the whole cluster: leave them out")
            found.append(AccessGrant(who, frozenset(roles), topologies))
        return found

    def _revoked(self, given: Mapping[str, Any]) -> RevokedCredentials:
        serials = frozenset(
            self._hex("revoked.serials", one).lstrip("0") for one in self._texts("revoked", given, "serials")
        )
        prints = frozenset(
            self._hex("revoked.fingerprints", one) for one in self._texts("revoked", given, "fingerprints")
        )
        for one in prints:
            if len(one) != _FINGERPRINT_DIGITS:
                self._wrong("revoked.fingerprints", f"{one!r} is no SHA-256: it has {len(one)} digits, and not 64")
        ids = frozenset(self._texts("revoked", given, "token_ids"))
        principals = self._texts("revoked", given, "principals")
        self._kinds("revoked.principals", principals)
        return RevokedCredentials(serials, prints, ids, principals)

    def _tokens(self, content: Mapping[str, Any]) -> TokenIssuer | None:
        names = ("issuer", "audience", "algorithms", "jwks", "name_claim", "groups_claim", "leeway_seconds")
        given = self._table(content, "tokens", names)
        issuer = self._value("tokens", given, "issuer", str, "")
        audience = self._value("tokens", given, "audience", str, "")
        algorithms = self._texts("tokens", given, "algorithms", required=True)
        jwks = self._value("tokens", given, "jwks", str, "")
        leeway = self._value("tokens", given, "leeway_seconds", (int, float), 30.0)
        for name, value in (("issuer", issuer), ("audience", audience)):
            if not value:
                self._wrong(f"tokens.{name}", "is missing: a token for another service must not count here")
        for one in algorithms:
            if one not in ALGORITHMS:
                self._wrong("tokens.algorithms", f"{one!r} is not allowed: choose of {', '.join(ALGORITHMS)}")
        if not 0 <= leeway <= 300:
            self._wrong("tokens.leeway_seconds", "it takes 0 to 300")
        return TokenIssuer(
            issuer,
            audience,
            algorithms,
            self.path.parent / Path(jwks).expanduser() if jwks else None,
            self._value("tokens", given, "name_claim", str, "sub"),
            self._value("tokens", given, "groups_claim", str, "groups"),
            float(leeway),
        )

    def _signers(self, given: Any) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        if not isinstance(given, dict):
            self._wrong("packages.signers", "it takes a table: NAME = PUBLIC-KEY")
            return found
        for name, text in given.items():
            try:
                key = base64.b64decode(text, validate=True)
            except (binascii.Error, TypeError, ValueError):
                key = b""
            if len(key) != _KEY_BYTES:
                self._wrong(f"packages.signers.{name}", "it takes an Ed25519 public key: 32 bytes in base64")
            found[name] = key
        return found

    # Parts.

    def _table(self, content: Mapping[str, Any], name: str, known: Sequence[str]) -> Mapping[str, Any]:
        given = content.get(name, {})
        if not isinstance(given, dict):
            self._wrong(name, f"it is a section: write [{name}]")
            return {}
        self._known(name, given, known)
        return given

    def _known(self, place: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in given:
            if name not in known:
                where = f"{place}.{name}" if place else name
                self._wrong(where, f"is unknown{did_you_mean(name, known)}: there are {', '.join(known)}")

    def _value(self, place: str, given: Mapping[str, Any], name: str, kind: Any, default: Any) -> Any:
        value = given.get(name, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self._wrong(f"{place}.{name}".lstrip("."), f"it takes {_KINDS.get(kind, 'a number')}")
            return default
        return value

    def _texts(self, place: str, given: Mapping[str, Any], name: str, required: bool = False) -> tuple[str, ...]:
        value = given.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            self._wrong(f"{place}.{name}", 'it takes a list of texts: ["...", "..."]')
            return ()
        if required and not value:
            self._wrong(f"{place}.{name}", "is missing, or empty")
        return tuple(value)

    def _kinds(self, place: str, names: Sequence[str]) -> None:
        """A name without a kind names no principal: a grant or a revocation would do nothing."""
        for name in names:
            if name != "*" and not name.startswith(_NAME_KINDS):
                self._wrong(place, f"{name!r} has no kind: begin it with {', '.join(_NAME_KINDS)}")

    def _hex(self, place: str, text: str) -> str:
        digits = text.lower().removeprefix("0x").replace(":", "").removeprefix("sha256")
        if not digits or any(one not in string.hexdigits for one in digits):
            self._wrong(place, f"{text!r} is no number in hex, as `millwheel certificates show` prints it")
        return digits

    def _wrong(self, where: str, message: str) -> None:
        self.problems.append(Problem(f"{self.path}: {where}", message))


_KINDS: Final[Mapping[Any, str]] = {bool: "true or false", str: "a text"}


class PolicyFile:
    """A policy in a file. :meth:`reload` takes a changed file. If it has errors, the last good policy holds."""

    def __init__(self, path: Path, accept: Callable[[AccessPolicy], None] = lambda policy: None) -> None:
        """ConfigError: the file has problems.

        Args:
            path: The file.
            accept: Raises ConfigError for a policy that this process must not take.
        """
        self._path = path
        self._accept = accept
        self._seen = self._state()
        self._current = read_policy(path)
        accept(self._current)

    @property
    def current(self) -> AccessPolicy:
        """The last policy without errors."""
        return self._current

    def reload(self) -> None:
        """Read the file again if it has changed. Problems are logged once for each change."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            text = _text_of(self._path)
            if not text.strip():
                # A program that writes in place empties the file first. Nothing would be revoked meanwhile.
                raise ConfigError([Problem(str(self._path), "the file is empty")])
            policy = parse_policy(text, self._path)
            self._accept(policy)
        except ConfigError as error:
            log.error("the policy %s has changed and is not taken, so the one before holds: %s", self._path, error)
            return
        self._current = policy
        log.info("the policy %s has changed: it holds from now on", self._path)

    def _state(self) -> tuple[int, int, int]:
        try:
            stat = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
