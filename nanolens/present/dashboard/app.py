"""The server: which address answers what. Reading only, from memory and from the shelf; a request's text never names a file."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from nanolens.errors import UserError, fault, require
from nanolens.message import Message, msg
from nanolens.page.guard import App, Guard
from nanolens.page.view import comparison_of, findings_of, forecast_of, levels_of, view_of
from nanolens.present.dashboard.live import Hub
from nanolens.present.dashboard.series import Wanted, series_of
from nanolens.present.dashboard.shelf import Shelf, Wish
from nanolens.present.dashboard.strings import words_of
from nanolens.show.words import LANGUAGES, say

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST_LOG = 64 << 20  # bytes
LARGEST_WISH = 256 << 10
MOST_NEW_TOKENS = 4000
MOST_RUNS = 26  # in one comparison, and watched by one page
EXTRA = "page"
STYLED = b"<!-- styled -->"
GUARDED = re.compile(rb'document\.getElementById\("([0-9a-f]{32,})"\)')
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def build_app(shelf: Shelf, token: str, lang: str = "en", write_report: Callable[[str, str], bytes] | None = None) -> App:
    """The whole application behind its guard. `write_report(name, lang)` makes the file that a run can be sent as."""
    require("starlette", EXTRA)
    from starlette.applications import Starlette
    from starlette.routing import Route

    hub = Hub(shelf)
    answers = Answers(shelf, hub, lang, write_report)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        looking = asyncio.create_task(hub.run())
        yield
        looking.cancel()

    routes = [
        Route("/", answers.index),
        Route("/page/{name}", answers.page),
        Route("/plotly.js", answers.plotly),
        Route("/api/words", answers.words),
        Route("/api/runs", answers.runs),
        Route("/api/events", answers.events),
        Route("/api/compare", answers.compare),
        Route("/api/log", answers.log, methods=["POST"]),
        Route("/api/runs/{id}", answers.run),
        Route("/api/runs/{id}/series", answers.series),
        Route("/api/runs/{id}/findings", answers.findings),
        Route("/api/runs/{id}/forecast", answers.forecast),
        Route("/api/runs/{id}/report", answers.report),
        Route("/api/runs/{id}/write", answers.write, methods=["POST"]),
    ]
    handlers: Any = {UserError: answers.mistake, KeyError: answers.unknown}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guard(
        app, token, say(msg("Open the page by the URL that {command:code} printed: it holds the key.", command="nanolens dashboard"), lang)
    )


class Answers:
    def __init__(self, shelf: Shelf, hub: Hub, lang: str, write_report: Callable[[str, str], bytes] | None):
        self.shelf, self.hub, self.lang, self.write_report = shelf, hub, lang, write_report
        self.assets = read_assets()
        self.script = read_plotly()

    # --- the page itself

    async def index(self, request: Request) -> Response:
        return _asset(self.assets["index.html"].replace(STYLED, styled_marks(self.script)), ".html")

    async def page(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.assets:
            raise KeyError(name)
        return _asset(self.assets[name], name[name.rfind(".") :])

    async def plotly(self, request: Request) -> Response:
        from starlette.responses import Response

        # Kept by the browser, so that only the first visit pays for it; the query in the page's own link changes with the version.
        return Response(self.script, media_type=TYPES[".js"], headers={"cache-control": "private, max-age=604800"})

    async def words(self, request: Request) -> Response:
        lang = self._lang(request)
        return _json({"lang": lang, "languages": LANGUAGES, "words": words_of(lang)})

    # --- runs

    async def runs(self, request: Request) -> Response:
        return _json({"runs": await asyncio.to_thread(self.shelf.rows)})

    async def run(self, request: Request) -> Response:
        name, lang = request.path_params["id"], self._lang(request)

        def answer() -> dict[str, Any]:
            seen = view_of(self.shelf.columns(name), self.shelf.state(name), self.shelf.preset(name), self.shelf.planned(name), lang)
            return {**seen, "id": name, "can_write": self.shelf.can_write(name)}

        return _json(await asyncio.to_thread(answer))

    async def series(self, request: Request) -> Response:
        name, wanted, lang = request.path_params["id"], Wanted.of(request.query_params), self._lang(request)

        def answer() -> dict[str, Any]:
            columns = self.shelf.columns(name)
            return {**series_of(columns, wanted), "lines": levels_of(columns, lang)}

        return _json(await asyncio.to_thread(answer))

    async def findings(self, request: Request) -> Response:
        name, lang = request.path_params["id"], self._lang(request)

        def answer() -> dict[str, Any]:
            return findings_of(self.shelf.diagnosis(name), self.shelf.held(name), self.shelf.is_fault, lang)

        return _json(await asyncio.to_thread(answer))

    async def forecast(self, request: Request) -> Response:
        name, lang = request.path_params["id"], self._lang(request)
        return _json(await asyncio.to_thread(lambda: forecast_of(self.shelf.forecast(name), lang)))

    async def compare(self, request: Request) -> Response:
        names, lang = _names(request), self._lang(request)
        return _json(await asyncio.to_thread(lambda: comparison_of(self.shelf.compare(names), lang)))

    async def report(self, request: Request) -> Response:
        from starlette.responses import Response

        name, lang = request.path_params["id"], self._lang(request)
        self.shelf.row(name)
        if self.write_report is None:
            raise KeyError(name)
        body = await asyncio.to_thread(self.write_report, name, lang)
        headers = {"content-disposition": 'attachment; filename="nanolens-report.html"'}
        return Response(body, media_type="application/octet-stream", headers=headers)

    async def events(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        watched = {}
        for part in request.query_params.get("watch", "").split(",")[:MOST_RUNS]:
            name, _, step = part.partition(":")
            if name:
                self.shelf.row(name)
                watched[name] = int(step) if step.isdecimal() and len(step) < 16 else 0
        stream = self.hub.stream(watched, Wanted.of(request.query_params))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    # --- what a reader gives

    async def log(self, request: Request) -> Response:
        """A log of any trainer, read in memory. Nothing of it is written anywhere."""
        raw = await _body(request, LARGEST_LOG)
        title = request.query_params.get("name", "")[:80]
        return _json({"ids": await asyncio.to_thread(self.shelf.add_log, raw, title)})

    async def write(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        name = request.path_params["id"]
        raw = await _body(request, LARGEST_WISH)
        try:
            wish = msgspec.json.decode(raw, type=Wish)
        except msgspec.MsgspecError:
            raise fault(msg("this is not a wish that the page makes")) from None
        if not 1 <= wish.max_new_tokens <= MOST_NEW_TOKENS:
            raise fault(
                msg("{count:count} tokens are too many at once", count=wish.max_new_tokens),
                fix=msg("ask for {most:count} at most", most=MOST_NEW_TOKENS),
            )
        if not self.shelf.can_write(name):
            raise fault(msg("this run has no checkpoint that could write"))
        return StreamingResponse(
            self.shelf.write(name, wish), media_type="text/plain; charset=utf-8", headers={"cache-control": "no-store"}
        )

    # --- mistakes

    async def mistake(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, UserError)
        lang = self._lang(request)

        def said(message: Message | None) -> str | None:
            return None if message is None else say(message, lang)

        return _json({"faults": [{"what": said(f.what), "where": said(f.where), "fix": said(f.fix)} for f in error.faults]}, 400)

    async def unknown(self, request: Request, error: Exception) -> Response:
        return _json({"faults": [{"what": say(msg("there is no such run or page"), self._lang(request)), "where": None, "fix": None}]}, 404)

    def _lang(self, request: Request) -> str:
        asked = request.query_params.get("lang", "")
        return asked if asked in LANGUAGES else self.lang


def read_assets() -> dict[str, bytes]:
    """The files of the page, by name."""
    folder = resources.files("nanolens.page") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name[file.name.rfind(".") :] in TYPES}


def read_plotly() -> bytes:
    """Plotly's script from the installed package; there is no copy of it here."""
    require("plotly", EXTRA)
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def styled_marks(script: bytes) -> bytes:
    """Elements by whose ids Plotly's parts see that their styles are already there: they would write them into the page, which its policy
    refuses, and the page uses none of these parts (maps)."""
    return b"".join(b'<meta id="%s">' % found for found in sorted(set(GUARDED.findall(script))))


def _asset(body: bytes, ending: str) -> Response:
    from starlette.responses import Response

    return Response(body, media_type=TYPES[ending], headers={"cache-control": "no-cache"})


def _json(value: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    # Numbers that are not finite become null here; where one must be shown as such, it is sent by its name.
    return Response(msgspec.json.encode(value), status, media_type="application/json", headers={"cache-control": "no-store"})


def _names(request: Request) -> list[str]:
    names = [name for name in request.query_params.get("ids", "").split(",") if name]
    if len(names) > MOST_RUNS:
        raise fault(
            msg("{count:count} runs are too many for one table", count=len(names)), fix=msg("choose {most:count} at most", most=MOST_RUNS)
        )
    return names


async def _body(request: Request, largest: int) -> bytes:
    """The request's body; a larger one is not even read to its end."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > largest:
            raise fault(
                msg("this is larger than {largest:bytes}", largest=largest),
                fix=msg("give the last part of it, or read it with {command:code}", command="nanolens diagnose FILE"),
            )
        pieces.append(piece)
    return b"".join(pieces)
