"""Bearer tokens: JSON Web Tokens of one issuer, checked by PyJWT (RFC 7519, RFC 8725).

The policy pins issuer, audience and algorithms. Keys come from a JWKS file, or from the issuer's discovery document
(OpenID Connect). A token needs an end (``exp``). So ``alg: none`` and signatures with a shared secret are never
accepted. The token's header does not decide.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt

from millwheel.rpc.access.policy import TokenIssuer
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import Principal

__all__ = ["KEYS_SECONDS", "MAX_TOKEN_CHARACTERS", "RETRY_SECONDS", "TokenVerifier"]

MAX_TOKEN_CHARACTERS: Final = 6_000
"""gRPC begins to refuse calls whose metadata has more than 8 KiB."""
_MAX_NAME: Final = 256
"""The most characters of a subject or a group."""
_MAX_CACHED: Final = 4_096
"""Tokens whose signature is checked once and not at each call."""
KEYS_SECONDS: Final = 300.0
"""Seconds for which keys of an issuer are used before they are asked for again."""
RETRY_SECONDS: Final = 10.0
"""The least seconds between two requests to an issuer. So tokens with unknown keys cannot flood it."""
_FETCH_SECONDS: Final = 5.0
_MAX_DOCUMENT_BYTES: Final = 1 << 20


class TokenVerifier:
    """Checks the tokens of one issuer. It may be shared by all calls of a server."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self.issuer = issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched = self._tried = float("-inf")
        self._stamp = 0
        self._known: OrderedDict[str, Principal] = OrderedDict()
        self._lock = asyncio.Lock()

    async def principal(self, token: str) -> Principal:
        """Return who a token names. RequestError (UNAUTHENTICATED) says what is wrong with it, and never shows it."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        await self._refresh()
        if (known := self._known.get(digest)) is not None:
            return known
        claims = self._checked(token, await self._key(token))
        principal = self._principal(claims)
        self._known[digest] = principal
        if len(self._known) > _MAX_CACHED:
            self._known.popitem(last=False)
        return principal

    async def _key(self, token: str) -> jwt.PyJWK:
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise _invalid(f"it has more than {MAX_TOKEN_CHARACTERS:,} characters")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise _invalid("it is no JSON Web Token") from error
        if header.get("alg") not in self.issuer.algorithms:
            raise _invalid(f"its algorithm is not among {', '.join(self.issuer.algorithms)}")
        name = header.get("kid", "")
        if name not in self._keys:
            await self._refresh(unknown=True)
        key = self._keys.get(name) or (next(iter(self._keys.values())) if not name and len(self._keys) == 1 else None)
        if key is None:
            raise _invalid("its issuer has no such key")
        return key

    def _checked(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        wanted = self.issuer
        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(wanted.algorithms),
                audience=wanted.audience,
                issuer=wanted.issuer,
                leeway=wanted.leeway_seconds,
                options={"require": ["exp", "iss", "aud", wanted.name_claim]},
            )
        except jwt.ExpiredSignatureError as error:
            raise _invalid("it has expired", "TOKEN_EXPIRED") from error
        except jwt.InvalidAudienceError as error:
            raise _invalid(f"its audience is not {wanted.audience!r}") from error
        except jwt.InvalidIssuerError as error:
            raise _invalid(f"its issuer is not {wanted.issuer!r}") from error
        except jwt.InvalidSignatureError as error:
            raise _invalid("its signature is wrong") from error
        except jwt.MissingRequiredClaimError as error:
            raise _invalid(f"it has no claim {error.claim!r}") from error
        except jwt.PyJWTError as error:
            raise _invalid(f"PyJWT refuses it ({type(error).__name__})") from error

    def _principal(self, claims: dict[str, Any]) -> Principal:
        groups = claims.get(self.issuer.groups_claim, ())
        groups = (groups,) if isinstance(groups, str) else groups
        if not isinstance(groups, (list, tuple)):
            raise _invalid(f"its claim {self.issuer.groups_claim!r} is no list of texts")
        if any(len(str(name)) > _MAX_NAME for name in (claims[self.issuer.name_claim], *groups)):
            # It is not cut: the rest could be another name, and a pattern of the policy could match it.
            raise _invalid(f"the subject or a group has more than {_MAX_NAME} characters")
        return Principal(
            f"token:{_one_line(claims[self.issuer.name_claim])}",
            tuple(f"group:{_one_line(group)}" for group in groups),
            credential=str(claims.get("jti", "")),
            expires=float(claims["exp"]) + self.issuer.leeway_seconds,
        )

    async def _refresh(self, unknown: bool = False) -> None:
        """Read the keys where they are old, or lack the key of a token. An issuer is asked at most every 10 s.

        While one call asks a slow issuer, the others go on with the keys that are there.
        """
        if self.issuer.jwks is not None:
            self._read_file()
            return
        is_fresh = time.monotonic() - self._fetched < KEYS_SECONDS
        if self._keys and not unknown and (is_fresh or self._lock.locked()):
            return
        async with self._lock:
            now = time.monotonic()
            if (now - self._fetched < KEYS_SECONDS and not unknown) or now - self._tried < RETRY_SECONDS:
                return
            self._tried = now
            try:
                document = await asyncio.to_thread(_fetch_keys, self.issuer.issuer)
                self._take(document)
                self._fetched = now
            except (OSError, ValueError, jwt.PyJWTError) as error:
                if not self._keys:
                    raise _no_keys(f"the keys of {self.issuer.issuer} cannot be read: {error}") from error

    def _read_file(self) -> None:
        path = self.issuer.jwks
        assert path is not None
        try:
            stamp = path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._take(json.loads(path.read_bytes()))
                self._stamp = stamp
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if not self._keys:
                raise _no_keys(f"the keys in {path} cannot be read: {error}") from error

    def _take(self, document: Any) -> None:
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object with keys")
        keys = jwt.PyJWKSet.from_dict(document).keys
        self._keys = {key.key_id or "": key for key in keys if key.algorithm_name in self.issuer.algorithms}
        # A key that is gone no longer counts, so no token that it has signed does.
        self._known.clear()


def _fetch_keys(issuer: str) -> Any:
    document = _fetch(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError(f"its discovery document is of issuer {document.get('issuer')!r}")
    return _fetch(str(document.get("jwks_uri", "")))


class _CheckedRedirects(HTTPRedirectHandler):
    """Follows an issuer's redirects to places from which keys may come."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        try:
            _refuse_plain(newurl)
        except ValueError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_plain(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        raise ValueError(f"{url!r} is not https")


def _fetch(url: str) -> Any:
    _refuse_plain(url)
    request = Request(url, headers={"Accept": "application/json"})
    with build_opener(_CheckedRedirects).open(request, timeout=_FETCH_SECONDS) as answer:
        content = answer.read(_MAX_DOCUMENT_BYTES + 1)
    if len(content) > _MAX_DOCUMENT_BYTES:
        raise ValueError(f"{url} has more than {_MAX_DOCUMENT_BYTES:,} bytes")
    return json.loads(content)


def _one_line(text: object) -> str:
    return "".join(one if one.isprintable() else "?" for one in str(text))


def _invalid(why: str, reason: str = "TOKEN_INVALID") -> RequestError:
    return RequestError(
        FailureCode.UNAUTHENTICATED, f"the token is refused: {why}", "get a token for this cluster", reason=reason
    )


def _no_keys(why: str) -> RequestError:
    remedy = "see [tokens] in the policy of the server"
    return RequestError(
        FailureCode.UNAUTHENTICATED, f"no token can be checked: {why}", remedy, reason="TOKEN_KEYS_AWAY"
    )
