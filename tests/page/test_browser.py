"""The page as people see it, in a real browser: nothing on the console, no request to another host, in every test."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanolens.show.words import show
from tests.page.browser import ARGUMENTS, Watched, chromium, drawn, server_over, until, x_range
from tests.page.runs import NANOGPT_LOG, write_run
from tests.page.test_hostile import SCRIPTS

pytestmark = pytest.mark.heavy
HERE = {"127.0.0.1", "blob", "data"}


@pytest.fixture(scope="module")
def browser() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "runs"
    write_run(folder / "one", steps=3000, seed=1, max_iters=3000)
    write_run(folder / "two", steps=3000, seed=2, max_iters=3000, learning_rate=3e-3)
    write_run(folder / "sick", steps=400, nan_from=300)
    return folder


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with server_over(root) as found:
        yield found


@pytest.fixture
def watched(browser) -> Iterator[Watched]:
    context = browser.new_context(
        viewport={"width": 1400, "height": 950}, permissions=["clipboard-read", "clipboard-write"]
    )
    watched = Watched(context.new_page())
    yield watched
    watched.assert_clean(HERE)
    context.close()


@pytest.fixture
def page(watched: Watched, url: str):
    watched.page.goto(url)
    watched.page.wait_for_selector(".line:not(.names)")
    return watched.page


def open_run(page, name: str) -> None:
    page.click(f"[data-run={name}] a")
    drawn(page)


def test_the_token_leaves_the_address_bar(page) -> None:
    assert "token" not in page.url
    page.reload()
    page.wait_for_selector(".line:not(.names)")


def test_the_list_can_be_searched_and_filtered(page) -> None:
    page.wait_for_selector("[data-run=sick] .badge.fault")
    page.keyboard.press("/")
    page.keyboard.type("tw")
    until(page, lambda: listed(page) == ["two"])
    page.fill(".search", "")
    page.click("[data-filter=faulty]")
    until(page, lambda: "sick" in listed(page) and "one" not in listed(page))


def listed(page) -> list[str]:
    return page.eval_on_selector_all(".line:not(.names)", "rows => rows.map(row => row.dataset.run)")


def test_runs_are_overlaid_with_a_verdict_in_words(page) -> None:
    for name in ("one", "two"):
        page.check(f"[data-run={name}] input")
    page.wait_for_selector(".tray table")
    until(
        page,
        lambda: "learning_rate" in page.inner_text(".tray table") or "learning rate" in page.inner_text(".tray table"),
    )
    page.click(".tray a.main")
    drawn(page)
    page.wait_for_selector("p.verdict")
    names = page.eval_on_selector_all(".ranking tbody th", "items => items.map(item => item.innerText)")
    assert any("one" in name for name in names) and any("two" in name for name in names)
    assert page.inner_text(".head .verdict").count(".") >= 1


def test_the_axis_switches_between_step_tokens_flops_and_time(page) -> None:
    open_run(page, "one")
    ends = {"step": 3000, "tokens": 3000 * 768, "flops": 3000 * 768 * 5e6, "time": 3000 * 0.02 + 60 * 0.4}
    for key, axis in (("2", "tokens"), ("3", "flops"), ("4", "time"), ("1", "step")):
        page.keyboard.press(key)
        page.wait_for_selector(f"[data-pick=axis-{axis}][aria-pressed=true]")
        until(page, lambda axis=axis: x_range(page)[1] == pytest.approx(ends[axis], rel=0.02))


def test_zoom_pan_and_crosshair_go_through_all_charts(page) -> None:
    open_run(page, "one")
    box = page.query_selector("[data-chart=loss] .plot").bounding_box()
    left, wide = box["x"] + 58, box["width"] - 72  # the margins of a chart
    page.mouse.move(left + wide * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(left + wide * 0.5, box["y"] + 62, steps=6)
    page.mouse.up()
    until(page, lambda: 1150 < x_range(page)[0] < 1250 and 1450 < x_range(page)[1] < 1550)
    until(page, lambda: x_range(page, "lr") == pytest.approx(x_range(page)))
    points = "() => document.querySelector('[data-chart=loss] path.curve').getAttribute('d').split(/[ML]/).length"
    until(page, lambda: page.evaluate(points) > 290)  # each step of the stretch, not a thinned one
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 80)
    until(
        page,
        lambda: page.inner_text("[data-chart=lr] .item .value") == "0.001" and page.is_visible("[data-chart=lr] .hair"),
    )
    until(page, lambda: "step 1,3" in page.inner_text(".where"))
    page.keyboard.press("0")
    until(page, lambda: x_range(page)[1] == pytest.approx(3000))


def test_a_chart_can_be_used_without_a_mouse(page) -> None:
    open_run(page, "one")
    page.focus("[data-chart=loss] .stage")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    until(page, lambda: page.inner_text("#said").startswith("step "))
    page.keyboard.press("+")
    until(page, lambda: x_range(page)[1] - x_range(page)[0] < 1600)
    page.click("[data-chart=loss] .rows summary")
    until(page, lambda: page.locator("[data-chart=loss] table tbody tr").count() > 20)


def test_a_finding_leads_to_its_place(page) -> None:
    open_run(page, "sick")
    page.wait_for_selector("[data-code=nan_divergence]")
    page.click("[data-code=nan_divergence] .jump button")
    until(page, lambda: 200 < x_range(page)[0] <= 300 and x_range(page)[1] >= 400)
    until(page, lambda: page.is_visible("[data-chart=loss] .hair"))
    assert "NaN" in page.text_content("[data-chart=loss] .area")


def test_a_change_is_copied(page) -> None:
    open_run(page, "sick")
    finding = page.locator("details.finding:has(.command)").first
    finding.wait_for()
    if finding.get_attribute("open") is None:
        finding.locator("summary").click()
    finding.locator(".copy").first.click()
    until(
        page,
        lambda: page.evaluate("navigator.clipboard.readText()") == finding.locator(".command code").first.inner_text(),
    )


def test_a_dropped_log_gets_the_same_view(page, root: Path) -> None:
    before = sorted(root.rglob("*"))
    page.evaluate(
        """log => {
            const data = new DataTransfer();
            data.items.add(new File([log], "train.log", { type: "text/plain" }));
            window.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        NANOGPT_LOG,
    )
    drawn(page)
    page.wait_for_selector(".finding")
    assert page.inner_text("h1") == "train.log" or "train" in page.inner_text("h1")
    assert sorted(root.rglob("*")) == before


def test_hindi_and_dark_and_back(page) -> None:
    open_run(page, "one")
    page.click("[data-act=lang-hi]")
    # The old page stays on screen until the new words have arrived, so ask for the words themselves.
    page.wait_for_function(
        """() => [[".findings", 30], [".bar", 10]].every(
            ([where, letters]) =>
                (document.querySelector(where)?.innerText.match(/[\\u0900-\\u097f]/g) ?? []).length > letters)"""
    )
    drawn(page)
    assert page.evaluate("document.documentElement.lang") == "hi"
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("[data-act=theme]")
    until(page, lambda: page.evaluate("getComputedStyle(document.body).backgroundColor") != paper)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("[data-act=lang-en]")
    page.wait_for_selector("html[lang=en]")
    drawn(page)


def test_who_prefers_dark_gets_dark(browser, url: str) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".line")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    context.close()


def test_a_phone_needs_no_sideways_scrolling(browser, url: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 840})
    watched = Watched(context.new_page())
    page = watched.page
    page.goto(url)
    page.wait_for_selector(".line:not(.names)")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    open_run(page, "one")
    page.wait_for_selector(".finding")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    watched.assert_clean(HERE)
    context.close()


def test_numbers_look_the_same_in_the_page_and_in_the_terminal(page) -> None:
    kinds = (
        "count",
        "number",
        "about",
        "nats",
        "rough_nats",
        "rate",
        "seconds",
        "share",
        "bytes",
        "tokens",
        "parameters",
        "flops",
        "tokens_per_s",
    )
    values = [
        0,
        1,
        3,
        12.3,
        0.001,
        0.00026512,
        0.1234567,
        0.9501,
        1.0,
        59.99,
        119.9,
        120.0,
        3599.0,
        3600.0,
        86400.0,
        200000.0,
        999,
        1000,
        16384,
        1e6,
        123456789.0,
        2.5e12,
        0.0000004,
    ]
    pairs = [(value, kind) for kind in kinds for value in values]
    seen = page.evaluate(
        "async pairs => "
        "{ const { show } = await import('/page/words.js'); return pairs.map(([value, kind]) => show(value, kind)); }",
        pairs,
    )
    wrong = [
        (value, kind, here, there)
        for (value, kind), there in zip(pairs, seen, strict=True)
        if (here := show(value, kind)) != there and not math.isnan(value)
    ]
    assert wrong == []


def test_a_report_opens_from_disk_and_asks_nobody(browser, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    subprocess.run(
        [sys.executable, "-m", "nanolens", "report", str(root / "sick"), "-o", str(out)],
        check=True,
        capture_output=True,
    )
    context = browser.new_context(viewport={"width": 1400, "height": 950}, offline=True)
    watched = Watched(context.new_page())
    page = watched.page
    page.goto(out.as_uri())
    drawn(page)
    page.wait_for_selector("[data-code=nan_divergence]")
    page.click("[data-pick=axis-time]")
    page.click("[data-pick=smooth-50]")
    until(page, lambda: 0 < x_range(page)[1] < 60)
    page.click("[data-code=nan_divergence] .jump button")
    until(page, lambda: page.is_visible("[data-chart=loss] .hair"))
    watched.assert_clean({"file"})
    assert watched.hosts == {"file"}
    context.close()


def test_no_hostile_text_runs_in_the_browser(browser, tmp_path: Path) -> None:
    for i, text in enumerate(SCRIPTS):
        write_run(
            tmp_path / "runs" / f"{i} {text}".replace("/", "∕").replace("\x00", "␀"),
            steps=60,
            sample=text,
            dataset=text,
            nan_from=50,
        )
    log = NANOGPT_LOG + "\n" + "\n".join(SCRIPTS)
    with server_over(tmp_path / "runs") as url:
        context = browser.new_context()
        watched = Watched(context.new_page())
        page = watched.page
        page.goto(url)
        page.wait_for_selector(".line:not(.names) .badge")
        links = page.eval_on_selector_all(".line:not(.names) a", "links => links.map(link => link.hash)")
        assert len(links) == len(SCRIPTS)
        for link in links:
            page.evaluate("hash => { location.hash = hash }", link)
            page.wait_for_selector(".finding")
            page.wait_for_selector(".samples pre")
            assert page.evaluate("window.hacked") is None
        page.evaluate(
            "hash => { location.hash = hash }", "#/compare/" + ",".join(link.rpartition("/")[2] for link in links[:10])
        )
        page.wait_for_selector(".ranking tbody tr")
        page.click("[data-act=log]")
        page.fill("dialog textarea", log)
        page.click("dialog .main")
        drawn(page)
        assert page.evaluate("window.hacked") is None
        watched.assert_clean(HERE)
        context.close()


TINY = [
    "--dataset=pydocs",
    "--arch=gpt2",
    "--n_layer=2",
    "--n_head=2",
    "--n_embd=64",
    "--block_size=64",
    "--batch_size=16",
    "--gradient_accumulation_steps=1",
    "--eval_interval=40",
    "--eval_iters=2",
    "--device=cpu",
    "--compile=False",
    "--threads=1",
    "--sample_tokens=20",
    "--warmup_iters=10",
]


def test_a_step_is_on_the_page_within_two_seconds_and_then_the_model_writes(browser, tmp_path: Path) -> None:
    """A real training, watched; afterwards its model is tried."""
    (tmp_path / "runs").mkdir()
    command = [
        sys.executable,
        "-m",
        "nanolens",
        "train",
        *TINY,
        "--max_iters=100000",
        "--lr_decay_iters=100000",
        "--out_dir=runs/live",
    ]
    with (
        server_over(tmp_path / "runs") as url,
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as training,
    ):
        try:
            context = browser.new_context(viewport={"width": 1400, "height": 950})
            watched = Watched(context.new_page())
            page = watched.page
            page.goto(url)
            page.wait_for_selector("[data-run=live] a", timeout=60_000)
            page.click("[data-run=live] a")
            drawn(page)
            events = tmp_path / "runs" / "live" / "events.jsonl"
            waits = [_seconds_until_shown(page, events) for _ in range(5)]
            assert sorted(waits)[2] < 2.0, waits
            points = "() => document.querySelector('[data-chart=loss] path.curve').getAttribute('d').length"
            first = page.evaluate(points)
            until(page, lambda: page.evaluate(points) != first)
        finally:
            training.terminate()
            training.wait(60)
        page.wait_for_selector(".head [data-state=stopped]", timeout=10_000)
        page.wait_for_selector(".try textarea", timeout=20_000)
        page.fill(".try textarea", "The ")
        page.fill(".try input[type=number] >> nth=0", "40")
        page.click(".try .main")
        page.wait_for_function("() => document.querySelector('.try .sample').innerText.length > 20", timeout=60_000)
        page.wait_for_selector(".try .sample:not(.writing)", timeout=60_000)
        assert page.inner_text(".try .sample").startswith("The ")
        watched.assert_clean(HERE)
        context.close()


def _seconds_until_shown(page, events: Path) -> float:
    """From the writing of the newest step to its being on the page."""
    steps = [
        json.loads(line) for line in events.read_text().splitlines() if '"step_taken"' in line and line.endswith("}")
    ]
    newest = steps[-1]
    page.wait_for_function(
        "step => Number(document.querySelector('.progress[aria-valuenow]')?.getAttribute('aria-valuenow')) >= step",
        arg=newest["step"],
        timeout=15_000,
        polling=50,
    )
    return time.time() - newest["at_s"]
