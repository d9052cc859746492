"""Who may ask: every request passes here before anything else looks at it.

A page on the open web can make a browser send requests to this machine. So: the Host must be a name of the loopback (a
name that an attacker's DNS points here is refused), an Origin must be this very server, every request needs the token
that was printed (first in the URL, then in a cookie that other sites' pages cannot send), and whatever changes
something must be a POST with a header that a foreign form cannot set. No answer carries a CORS header. Ports in the
Host are free, so that a forwarded port (ssh -L) works."""

from __future__ import annotations

import hmac
import re
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])\.?(?::(\d{1,5}))?", re.IGNORECASE)
ASKED_BY_PAGE = b"x-nanolens"  # only our own script sends it: a foreign page would need a preflight, which is refused
METHODS = ("GET", "HEAD", "POST")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


class Guard:
    """An ASGI application around another: refuses, or lets through and adds the headers of a strict page."""

    def __init__(self, app: ASGIApp, token: str, refusal: str):
        self.app, self.token, self.refusal = app, token, refusal
        self.cookie = f"nanolens_{token[:6]}"  # cookies are shared by all ports of a host: each server has its own name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers = _headers(scope)
        by_url = self._token_in_url(scope)
        status = self._refused(scope, headers, by_url)
        if status:
            return await _plain(send, status, self.refusal if status == 403 else "")

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
                if by_url:
                    cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        await self.app(scope, receive, dressed)

    def _refused(self, scope: Scope, headers: dict[bytes, list[bytes]], by_url: bool) -> int:
        """The status of a refusal, or 0."""
        if scope["method"] not in METHODS:
            return 405
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not is_loopback(hosts[0]):
            return 421
        origins = headers.get(b"origin", [])
        if origins and (len(origins) > 1 or origins[0].lower() != b"http://" + hosts[0].lower()):
            return 403
        if not _is_from_here(headers, is_page=scope["path"] == "/"):
            return 403
        if scope["method"] == "POST" and (ASKED_BY_PAGE not in headers or not origins):
            return 403
        if not by_url and not self._token_in_cookie(headers):
            return 403
        return 0

    def _token_in_url(self, scope: Scope) -> bool:
        """Only for the page itself: what a script asks for comes with the cookie."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        try:
            given = parse_qs(scope.get("query_string", b"").decode("ascii"), max_num_fields=20).get("token", [])
        except (UnicodeDecodeError, ValueError):
            return False
        return len(given) == 1 and self._is_token(given[0])

    def _token_in_cookie(self, headers: dict[bytes, list[bytes]]) -> bool:
        for line in headers.get(b"cookie", []):
            try:
                found = SimpleCookie(line.decode("latin-1")).get(self.cookie)
            except CookieError:
                continue
            if found is not None and self._is_token(found.value):
                return True
        return False

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.token.encode())


def is_loopback(host: bytes) -> bool:
    found = HOST.fullmatch(host.decode("latin-1"))
    return found is not None and (found[2] is None or 0 < int(found[2]) < 65536)


def _is_from_here(headers: dict[bytes, list[bytes]], is_page: bool) -> bool:
    """By what the browser says of a request's origin. Only the page may be opened from elsewhere: by a click."""
    sites = headers.get(b"sec-fetch-site", [])
    is_click = headers.get(b"sec-fetch-mode") == [b"navigate"] and headers.get(b"sec-fetch-dest") == [b"document"]
    return not sites or sites in ([b"same-origin"], [b"none"]) or (is_page and is_click)


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


async def _plain(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
