"""RELIABILITY R14: requests and texts that mean harm. None passes; the browser's part is in test_browser.py."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from nanolens.page.guard import is_loopback
from tests.page.conftest import TOKEN
from tests.page.runs import write_run

HOSTS = [
    "evil.example",
    "evil.example:7860",
    "127.0.0.1.evil.example",
    "localhost.evil.example:7860",
    "127.0.0.1@evil.example",
    "evil.example#127.0.0.1",
    "0.0.0.0:7860",
    "192.168.1.5:7860",
    "10.0.0.1",
    "127.0.0.2:7860",
    "2130706433",
    "0x7f.1",
    "127.1:7860",
    "[::]:7860",
    "[::ffff:127.0.0.1]:7860",
    "localhost:7860:80",
    "localhost:99999",
    "localhost:",
    " localhost",
    "localhost/",
    "localhos\u0074.",
    "lоcalhost:7860",
    "",
    "localhost,evil.example",
]
PATHS = [
    "/page/../server.py",
    "/page/..%2fserver.py",
    "/page/%2e%2e/server.py",
    "/page/%2e%2e%2fguard.py",
    "/page/..%5cserver.py",
    "/page/....//server.py",
    "/page/%252e%252e%252fserver.py",
    "/page//etc/passwd",
    "/page/%2fetc%2fpasswd",
    "/page/style.css%00.js",
    "/page/..;/server.py",
    "/page/C:%5cWindows",
    "/page/file:%2f%2f%2fetc%2fpasswd",
    "/page/%c0%ae%c0%ae%2fserver.py",
    "/page/.",
    "/page/~root",
    "/../../etc/passwd",
    "/api/runs/../../etc/passwd",
    "/api/runs/..%2f..%2fetc",
    "/api/runs/%2e%2e",
    "/api/runs/one",
    "/api/runs/one%00",
    "/api/runs/run.json/series",
    "/api/runs/*/findings",
    "/api/runs/__class__/report",
    "/api/compare?ids=../../etc/passwd,../x",
    "/api/events?watch=../../etc:1",
    "/api/runs/%F0%9F%98%80",
]


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_not_the_loopback_is_refused(host: str) -> None:
    if host == "localhos\u0074.":
        assert is_loopback(host.encode())  # a trailing dot is the same name
        return
    assert not is_loopback(host.encode())


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:7860", "0.0.0.0:7860"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/events", "/page/main.js", "/page/chart.js"])
def test_every_address_asks_for_the_host(door, host: str, path: str) -> None:
    answer = door.get(path, host=host)
    assert answer.status_code == 421 and answer.content == b""


@pytest.mark.parametrize("host", ["localhost:7860", "LOCALHOST", "127.0.0.1", "[::1]:9000", "localhost.:7860"])
def test_a_loopback_host_on_any_port_is_let_in(door, host: str) -> None:
    assert door.get("/api/runs", host=host).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_page(door, path: str) -> None:
    answer = door.get(path)
    assert answer.status_code in (400, 404), path
    assert b"root:" not in answer.content and b"def " not in answer.content


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        "nanolens=x",
        "nanolens_kkkkkk=",
        f"nanolens_kkkkkk={TOKEN[:-1]}",
        f"nanolens_kkkkkk={TOKEN}x",
        "\x00",
        f"other={TOKEN}",
        "nanolens_kkkkkk=ключ".encode().decode("latin-1"),
    ],
)
@pytest.mark.parametrize("path", ["/api/runs", "/api/events", "/page/main.js", "/"])
def test_without_the_key_nothing_is_told(door, cookie: str, path: str) -> None:
    answer = door.client.get(path, headers={"host": "127.0.0.1:7860", "cookie": cookie.encode("latin-1")})
    assert answer.status_code == 403 and "set-cookie" not in answer.headers
    assert b"one" not in answer.content.replace(b"nanolens", b"").split(b"key")[-1]


@pytest.mark.parametrize(
    "query", ["token=", "token=x", f"token={TOKEN}&token={TOKEN}", f"Token={TOKEN}", f"token={TOKEN[:-1]}"]
)
def test_a_wrong_token_in_the_url_opens_nothing(door, query: str) -> None:
    assert door.client.get(f"/?{query}", headers={"host": "127.0.0.1:7860"}).status_code == 403


@pytest.mark.parametrize("path", ["/api/runs", "/page/main.js", "/page/chart.js"])
def test_the_token_in_the_url_opens_the_page_alone(door, path: str) -> None:
    assert door.client.get(f"{path}?token={TOKEN}", headers={"host": "127.0.0.1:7860"}).status_code == 403


def test_the_token_becomes_a_cookie_that_other_sites_cannot_use(door) -> None:
    answer = door.client.get(f"/?token={TOKEN}", headers={"host": "127.0.0.1:7860"})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:7860",
        "http://127.0.0.1:9999",
        "http://localhost:7860",
        "http://127.0.0.1:7860.evil.example",
        "file://",
        "",
    ],
)
def test_another_origin_may_neither_read_nor_write(door, origin: str) -> None:
    assert door.get("/api/runs", origin=origin).status_code == 403
    assert door.post("/api/log", "iter 0: loss 4.1, time 1ms", origin=origin).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_that_the_browser_says_is_foreign_is_refused(door, site: str) -> None:
    for path in ("/api/runs", "/page/chart.js", "/api/events"):
        answer = door.get(path, **{"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"})
        assert answer.status_code == 403
    assert (
        door.get("/", **{"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}).status_code
        == 403
    )
    opened = door.get("/", **{"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"})
    assert opened.status_code == 200  # a click on the printed URL in another program


@pytest.mark.parametrize("missing", ["x-nanolens", "origin"])
def test_a_form_of_another_site_cannot_post(door, missing: str) -> None:
    headers = {
        "host": "127.0.0.1:7860",
        "cookie": f"{door.guard.cookie}={TOKEN}",
        "origin": "http://127.0.0.1:7860",
        "x-nanolens": "1",
    }
    del headers[missing]
    assert door.client.post("/api/log", content="iter 0: loss 4.1, time 1ms", headers=headers).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_are_not_spoken(door, method: str) -> None:
    answer = door.client.request(
        method, "/api/runs", headers={"host": "127.0.0.1:7860", "cookie": f"{door.guard.cookie}={TOKEN}"}
    )
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_there_is_no_websocket(door) -> None:
    from starlette.websockets import WebSocketDisconnect

    with (
        pytest.raises(WebSocketDisconnect),
        door.client.websocket_connect("/api/events", headers={"host": "127.0.0.1:7860"}),
    ):
        pass


@pytest.mark.parametrize("path", ["/", "/api/runs", "/page/main.js", "/nothing"])
def test_every_answer_has_a_strict_policy(door, path: str) -> None:
    headers = door.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control")]


def test_links_that_lead_out_of_the_root_are_not_followed(tmp_path: Path, open_door) -> None:
    write_run(tmp_path / "elsewhere", steps=5)
    write_run(tmp_path / "runs" / "inside", steps=5)
    os.symlink(tmp_path / "elsewhere", tmp_path / "runs" / "linked")
    (tmp_path / "runs" / "stolen").mkdir()
    (tmp_path / "runs" / "stolen" / "run.json").write_text((tmp_path / "elsewhere" / "run.json").read_text())
    os.symlink("/etc/passwd", tmp_path / "runs" / "stolen" / "events.jsonl")
    door = open_door(tmp_path / "runs")
    assert [row["name"] for row in door.get("/api/runs").json()["runs"]] == ["inside"]


SCRIPTS = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=1'>",
    "</script><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    '"><svg onload=window.hacked=1>',
    "'-window.hacked--'",
    "<a href='javascript:window.hacked=1'>x</a>",
    "{{constructor.constructor('window.hacked=1')()}}",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "\u2028window.hacked=1//",
    "<!--<script>",
    "]]><script>window.hacked=1</script>",
    "$e^{x}$<b onmouseover=window.hacked=1>b</b>",
    "<math><mi//xlink:href='data:x,<script>window.hacked=1</script>'>",
    "\x00<script>window.hacked=1</script>",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_text_with_a_script_in_it_stays_data(tmp_path: Path, open_door, text: str) -> None:
    """In a run's name, its settings, its samples and a log: as JSON it is a string, and in a report no parser can take
    it for markup."""
    folder = tmp_path / "runs" / text.replace("/", "∕").replace("\x00", "␀")
    write_run(folder, steps=4, sample=text, dataset=text)
    door = open_door(tmp_path / "runs")
    (row,) = door.get("/api/runs").json()["runs"]
    view = door.get(f"/api/runs/{row['id']}")
    assert view.headers["content-type"] == "application/json"
    assert text in view.json()["samples"][0]["text"]
    report = door.get(f"/api/runs/{row['id']}/report").content.decode()
    head, _, rest = report.partition('<script type="application/json" id="data">')
    data = rest.partition("</script>")[0]
    (run,) = json.loads(data)["runs"].values()
    assert "<" not in data and run["view"]["samples"][0]["text"].startswith(text)
    assert "hacked" not in head.replace("&lt;", "").partition("<title>")[0]
    written = head.partition('<main id="written">')[2]
    assert "<script" not in written and not re.search(r"<(img|svg onload|iframe|a |b |math)|<[^>]* on\w+=", written)
    assert report.count("<script") == 2
    assert door.get(f"/api/runs/{row['id']}/report").headers["content-disposition"].startswith("attachment")
