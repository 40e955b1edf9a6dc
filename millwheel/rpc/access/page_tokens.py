"""Page tokens of lists that a caller sees in part.

A service's page token names where the next page begins: a topology, a query, or an interval's first key. That place may
be one that the caller may not see. So who holds no role for the whole cluster gets the token encrypted.

Invariant: no response shows such a caller more than the elements that it may see. Who could break it: a list that takes
a token in clear from such a caller. Whether a page follows would then tell which names exist.
"""

from __future__ import annotations

from typing import Any, Final

from cryptography.fernet import Fernet, InvalidToken

from millwheel.rpc.page_tokens import foreign_page_token

__all__ = ["PageTokens"]

_SEALED: Final = "sealed:"


class PageTokens:
    """Encrypts page tokens by a key of this process. After a change of the leader, a list begins again."""

    def __init__(self) -> None:
        self._cipher = Fernet(Fernet.generate_key())

    def seal(self, response: Any) -> None:
        """Encrypt the token of a response, if it has one."""
        if token := getattr(response, "next_page_token", ""):
            response.next_page_token = _SEALED + self._cipher.encrypt(token.encode()).decode()

    def unseal(self, request: Any, sees_all: bool) -> None:
        """Decrypt the token of a request, if it has one. RequestError: it is not one that this process gave."""
        token: str = getattr(request, "page_token", "")
        if not token or (sees_all and not token.startswith(_SEALED)):
            return
        try:
            request.page_token = self._cipher.decrypt(token.removeprefix(_SEALED).encode()).decode()
        except InvalidToken:
            raise foreign_page_token() from None
