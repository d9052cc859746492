"""The server: which address answers what. It only reads; the text of a request never names a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nanolens.errors import Fault, UserError, fault, require
from nanolens.files import cache_folder
from nanolens.message import msg
from nanolens.page.generator import GenerateRequest
from nanolens.page.guard import Guard
from nanolens.page.report import CONTENT_TYPES, EXTRA, read_assets, report_of
from nanolens.page.runs import Runs, name_of
from nanolens.page.series import SeriesQuery, series_of, tail_of
from nanolens.page.view import levels_of, words_of
from nanolens.show.answer import JsonObject
from nanolens.show.document import said
from nanolens.show.words import LANGUAGES, say

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

PORT = 7860
NICE = 10  # the page stands back behind a training on the same machine
LARGEST_LOG = 64 << 20  # bytes
LARGEST_WISH = 256 << 10
MOST_NEW_TOKENS = 4000
MOST_VISIBLE_ROWS = 100
MOST_RUNS = 40  # in one comparison, and watched by one page
TICK_S = 0.5
SLOWEST_TICK_S = 1.5  # a new step is on the page within two seconds
LOOK_COST_FRAC = 0.02  # of one core, for looking; where a look is expensive, there are fewer of them
PING_S = 15.0
TOKEN_FORM = re.compile(r"[\w-]{32}")
RESTARTS = ("resume", "attempt", "rollback")


def serve(root: Path | None, port: int | None, lang: str, on_ready: Callable[[str], None]) -> None:
    """Serves until interrupted. `on_ready` gets the URL once the port is bound."""
    require("uvicorn", EXTRA)
    import uvicorn

    runs = Runs(root)
    token = token_of(runs.root)
    app = build_app(runs, token, lang)
    listening = _listen(port)
    if hasattr(os, "nice"):
        os.nice(NICE)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        ws="none",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        lifespan="on",
        proxy_headers=False,
    )
    on_ready(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        runs.keep()
        runs.close()


def token_of(root: Path) -> str:
    """One for each folder, kept where only this user can read it: open tabs and bookmarks outlive a restart."""
    file = cache_folder() / "page" / f"{name_of(root)}.token"
    with contextlib.suppress(OSError):
        kept = file.read_text(encoding="ascii").strip()
        if TOKEN_FORM.fullmatch(kept) and not (os.name == "posix" and file.stat().st_mode & 0o077):
            return kept
    token = secrets.token_urlsafe(24)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as opened:
            opened.write(token)
    return token


def _listen(port: int | None) -> socket.socket:
    """A port of the loopback: the one asked for, or the usual one, or any that is free."""
    for wanted in (PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", wanted))
            listening.listen(128)  # a browser that is quicker than the server waits, and is not refused
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            because = getattr(error, "strerror", None) or str(error)
    what = msg("port {port:code} cannot be used: {because}", port, because)
    raise fault(what, where=f"--port={port}", fix=msg("leave the option out to use a free port"))


def build_app(store: Runs, token: str, lang: str = "en") -> ASGIApp:
    require("starlette", EXTRA)
    from starlette.applications import Starlette
    from starlette.routing import Route

    hub = EventHub(store)
    answers = Answers(store, hub, lang)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(hub.run())
        yield
        looking.cancel()

    routes = [
        Route("/", answers.index),
        Route("/page/{name}", answers.page),
        Route("/api/words", answers.words),
        Route("/api/runs", answers.runs),
        Route("/api/events", answers.events),
        Route("/api/look", answers.look),
        Route("/api/compare", answers.compare),
        Route("/api/log", answers.log, methods=["POST"]),
        Route("/api/runs/{id}", answers.run),
        Route("/api/runs/{id}/series", answers.series),
        Route("/api/runs/{id}/findings", answers.findings),
        Route("/api/runs/{id}/forecast", answers.forecast),
        Route("/api/runs/{id}/report", answers.report),
        Route("/api/runs/{id}/start", answers.start, methods=["POST"]),
        Route("/api/runs/{id}/write", answers.write, methods=["POST"]),
    ]
    handlers = {UserError: answers.mistake, KeyError: answers.unknown}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    command = "nanolens dashboard"
    refusal = msg("Open the page with the URL that {command:code} printed: it contains the access key.", command)
    return Guard(app, token, say(refusal, lang))


class Answers:
    """What each address answers; Starlette runs what is not `async` in a thread."""

    def __init__(self, store: Runs, hub: EventHub, lang: str):
        self.store, self.hub, self.lang = store, hub, lang
        self.assets = read_assets()

    # --- the page itself

    def index(self, request: Request) -> Response:
        return _asset(self.assets["index.html"], ".html")

    def page(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _asset(self.assets[name], name[name.rfind(".") :])

    def words(self, request: Request) -> Response:
        lang = self._lang(request)
        return _json({"lang": lang, "languages": LANGUAGES, "words": words_of(lang)})

    # --- runs

    def runs(self, request: Request) -> Response:
        return _json({"runs": self.store.rows()})

    def run(self, request: Request) -> Response:
        name = request.path_params["id"]
        view = self.store.view(name, self._lang(request))
        return _json({**view, "id": name, "can_write": self.store.can_write(name)})

    def series(self, request: Request) -> Response:
        columns = self.store.columns(request.path_params["id"])
        lines = levels_of(columns, self._lang(request))
        return _json({**series_of(columns, SeriesQuery.of(request.query_params)), "lines": lines})

    def findings(self, request: Request) -> Response:
        return _json(self.store.findings(request.path_params["id"], self._lang(request)))

    def forecast(self, request: Request) -> Response:
        return _json(self.store.forecast(request.path_params["id"], self._lang(request)))

    def compare(self, request: Request) -> Response:
        names = [name for name in request.query_params.get("ids", "").split(",") if name]
        if len(names) > MOST_RUNS:
            what = msg("{count:count run is|runs are} too many for one table", len(names))
            raise fault(what, fix=msg("choose at most {most:count}", MOST_RUNS))
        return _json(self.store.compare(names, self._lang(request)))

    def report(self, request: Request) -> Response:
        name = request.path_params["id"]
        plain = re.sub(r"[^\w.-]+", "-", str(self.store.row(name)["name"]), flags=re.ASCII).strip("-.") or "run"
        headers = {"content-disposition": f'attachment; filename="{plain[:80]}.html"'}
        return _response(report_of(self.store, [name], self._lang(request)), "application/octet-stream", headers)

    def look(self, request: Request) -> Response:
        """Which runs somebody is looking at: those are read first."""
        self.store.look_first(request.query_params.get("ids", "").split(",")[:MOST_VISIBLE_ROWS])
        return _json({})

    async def events(self, request: Request) -> Response:
        watched = {}
        for part in request.query_params.get("watch", "").split(",")[:MOST_RUNS]:
            name, _, step = part.partition(":")
            if name:
                self.store.row(name)
                watched[name] = int(step) if step.isdecimal() and len(step) < 16 else 0
        return _stream(self.hub.stream(watched, SeriesQuery.of(request.query_params)), "text/event-stream")

    # --- what a reader gives

    async def log(self, request: Request) -> Response:
        """A log of any trainer, read in memory. Nothing of it is written anywhere."""
        raw = await _body(request, LARGEST_LOG)
        title = request.query_params.get("name", "")[:80]
        return _json({"ids": await asyncio.to_thread(self.store.add_log, raw, title)})

    async def write(self, request: Request) -> Response:
        name = request.path_params["id"]
        raw = await _body(request, LARGEST_WISH)
        try:
            wish = msgspec.json.decode(raw, type=GenerateRequest)
        except msgspec.MsgspecError:
            raise fault(msg("unknown request")) from None
        if not 1 <= wish.max_new_tokens <= MOST_NEW_TOKENS:
            what = msg("{count:count} tokens are too many at once", wish.max_new_tokens)
            raise fault(what, fix=msg("ask for at most {most:count}", MOST_NEW_TOKENS))
        if not self.store.can_write(name):
            raise fault(msg("this run has no checkpoint to sample from"))
        return _stream(self.store.write(name, wish), "text/plain; charset=utf-8")

    def start(self, request: Request) -> Response:
        """Loads the model of a run that somebody is about to ask."""
        if self.store.can_write(request.path_params["id"]):
            self.store.start_writer(request.path_params["id"])
        return _json({})

    # --- mistakes

    def mistake(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, UserError)
        return _faults(error.faults, self._lang(request), 400)

    def unknown(self, request: Request, error: Exception) -> Response:
        return _faults([Fault(msg("there is no such run or page"))], self._lang(request), 404)

    def _lang(self, request: Request) -> str:
        asked = request.query_params.get("lang", "")
        return asked if asked in LANGUAGES else self.lang


def _response(body: bytes, media_type: str, headers: Mapping[str, str], status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(body, status, headers, media_type)


def _asset(body: bytes, ending: str) -> Response:
    return _response(body, CONTENT_TYPES[ending], {"cache-control": "no-cache"})


def _json(value: object, status: int = 200) -> Response:
    """Numbers that are not finite become null here; where one must be shown as such, it is sent by its name."""
    return _response(msgspec.json.encode(value), "application/json", {"cache-control": "no-store"}, status)


def _faults(faults: Sequence[Fault], lang: str, status: int) -> Response:
    given = [{key: getattr(each, key) for key in ("what", "where", "fix")} for each in faults]
    shown = [{key: text and said(text, lang) for key, text in each.items()} for each in given]
    return _json({"faults": shown}, status)


def _stream(pieces: AsyncIterator[bytes] | Iterator[str], media_type: str) -> Response:
    from starlette.responses import StreamingResponse

    return StreamingResponse(pieces, media_type=media_type, headers={"cache-control": "no-store"})


async def _body(request: Request, largest: int) -> bytes:
    """The request's body; a larger one is not even read to its end."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > largest:
            fix = msg("give the last part of it, or read it with {command:code}", "nanolens diagnose FILE")
            raise fault(msg("this is larger than {largest:bytes}", largest), fix=fix)
        pieces.append(piece)
    return b"".join(pieces)


# --- news


class EventHub:
    """News for open pages, by server-sent events. One task looks at the run folders for all pages, only while one is
    open: a `stat` a run, and a read of the new lines where a file has grown. What it finds becomes messages once."""

    def __init__(self, store: Runs):
        self.store = store
        self._waiting: set[asyncio.Queue[set[str]]] = set()
        self._tails: dict[tuple, JsonObject | None] = {}

    async def run(self) -> None:
        while True:
            started_at_s = time.monotonic()
            try:
                if self._waiting and await self._look():
                    continue
            except Exception:  # one run that cannot be read must not end the news of all others
                traceback.print_exc()
                await asyncio.sleep(SLOWEST_TICK_S)
            spent_s = time.monotonic() - started_at_s
            await asyncio.sleep(min(SLOWEST_TICK_S, max(TICK_S, spent_s / LOOK_COST_FRAC)))

    async def _look(self) -> bool:
        """Whether there is more to catch up with at once."""
        self._tails.clear()
        self._tell(await asyncio.to_thread(self.store.news))
        caught_up = await asyncio.to_thread(self.store.catch_up)
        self._tell(set() if caught_up is None else {caught_up})
        return caught_up is not None

    def _tell(self, changed: set[str]) -> None:
        if changed:
            for queue in self._waiting:
                queue.put_nowait(changed)

    async def stream(self, watched: dict[str, int], wanted: SeriesQuery) -> AsyncIterator[bytes]:
        """`watched`: the last step that the page already has of each run that it shows."""
        queue: asyncio.Queue[set[str]] = asyncio.Queue()
        self._waiting.add(queue)
        restarts: dict[str, int] = {}
        try:
            yield b": nanolens\n\n"
            changed = set(watched)  # what happened between the page's first look and now
            while True:
                for name in sorted(changed):
                    with contextlib.suppress(KeyError):  # a folder that has been removed
                        for message in await asyncio.to_thread(self._messages, name, watched, restarts, wanted):
                            yield message
                changed = set()
                try:
                    changed |= await asyncio.wait_for(queue.get(), PING_S)
                    while not queue.empty():
                        changed |= queue.get_nowait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._waiting.discard(queue)

    def _messages(
        self, name: str, watched: dict[str, int], restarts: dict[str, int], wanted: SeriesQuery
    ) -> list[bytes]:
        messages = [_message("row", {"id": name, "row": self.store.row(name)})]
        if name not in watched:
            return messages
        columns = self.store.columns(name)
        count = sum(mark.kind in RESTARTS for mark in columns.run.marks)
        is_new_attempt = restarts.setdefault(name, count) != count
        restarts[name] = count
        key = (name, wanted, watched[name], len(columns))
        if key not in self._tails:
            self._tails[key] = None if is_new_attempt else tail_of(columns, wanted, watched[name])
        tail = self._tails[key]
        watched[name] = int(columns.step[-1]) if len(columns) else 0
        return [*messages, _message("tail", {"id": name, "tail": tail})]


def _message(kind: str, value: JsonObject) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
