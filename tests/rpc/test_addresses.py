"""Addresses as people write them become host:port, or an error that says how to write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.rpc.addresses import server_address, server_addresses
from millwheel.rpc.failures import FailureCode, RequestError

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,5})?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)


@given(HOSTS, st.integers(1, 65_535))
def test_an_address_with_a_port_stays_as_it_is(host: str, port: int) -> None:
    assert server_address(f"{host}:{port}") == f"{host}:{port}"


@given(HOSTS)
def test_an_address_without_a_port_gets_the_default_one(host: str) -> None:
    assert server_address(host) == server_address(host.strip("[]")) == f"{host}:7433"


@given(st.text(max_size=30))
def test_anything_else_is_refused_in_words(text: str) -> None:
    refused: RequestError | None = None
    found = ""
    try:
        found = server_address(text)
    except RequestError as error:
        refused = error
    if refused is None:
        assert server_address(found) == found
    else:
        assert refused.code is FailureCode.INVALID_ARGUMENT
        assert "host:port" in refused.remedy


@pytest.mark.parametrize("text", ["a b", "http://x:1", "a:0", "a:65536", "a:", ":1", "[::1", "[1.2.3.4]:5", "a/b", ""])
def test_mistakes_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        server_address(text)


def test_a_list_has_commas_between_its_addresses() -> None:
    assert server_addresses(" mw-1, [::1]:80,,mw-2:81") == ["mw-1:7433", "[::1]:80", "mw-2:81"]
