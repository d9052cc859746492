"""Makes the pictures of the page in README and docs: trains four small runs, opens the page over them, photographs it.

    python tools/screenshots.py [docs/images]

Wants Debian's chromium and fonts-noto-core, and `pip install playwright pillow`; about a minute on two cores."""

from __future__ import annotations

import argparse
import io
import os
import pydoc_data.topics
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.page.runs import name_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE, SCALE = {"width": 1440, "height": 900}, 0.8  # of the window, and pixels of the picture for one of the page
TINY_TEXT = 3_300  # characters: a text that a small model memorises in a few hundred updates
SMALL = "--n_layer=3 --n_head=4 --n_embd=64 --block_size=32 --batch_size=12 --dropout=0 --device=cpu"
SETTINGS = (
    f"{SMALL} --learning_rate=4e-3 --warmup_iters=10 --eval_iters=10 --compile=False --sample_interval=0 --view=lines"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/images"))
    into = parser.parse_args().folder.resolve()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["NANOLENS_CACHE"] = str(Path(folder, "cache"))
        train_all()
        with page_over("runs") as url, browser() as opened:
            overfitting(opened, url, into / "run.png")
            comparison(opened, url, into / "compare.png")
            hindi(opened, url, into / "hindi.png")


def train_all() -> None:
    Path("tiny.txt").write_text("\n".join(pydoc_data.topics.topics.values())[:TINY_TEXT], "utf-8")
    nanolens("prepare tiny.txt --tokenizer=char --out=data/tiny")
    train("tiny-data", "--dataset=tiny --max_iters=400 --eval_interval=20 --arch=modern --optimizer=muon")
    for seed in (1, 2):
        train(f"gpt2-seed-{seed}", f"--dataset=pydocs --max_iters=300 --eval_interval=50 --seed={seed}")
    train("modern-muon", "--dataset=pydocs --max_iters=300 --eval_interval=50 --arch=modern --optimizer=muon")
    train("blown-up", "--dataset=pydocs --max_iters=200 --lr_decay_iters=300 --eval_interval=50")
    train("blown-up", "--max_iters=300 --init_from=resume --learning_rate=0.4 --min_lr=0.1")


def train(name: str, settings: str) -> None:
    architecture = "" if "--arch" in settings or "resume" in settings else "--arch=gpt2 --optimizer=adamw"
    own = "" if "resume" in settings else f"{SETTINGS} {architecture}"
    nanolens(f"train --out_dir=runs/{name} {own} {settings}")


def nanolens(words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "nanolens", *words.split()], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"nanolens {words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextmanager
def page_over(folder: str) -> Iterator[str]:
    command = [sys.executable, "-m", "nanolens", "dashboard", folder, "--port=0", "--no_browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://\S+", process.stdout.readline())
            assert url is not None
            yield url[0]
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
        yield playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)


def opened_page(opened: Browser, url: str, scheme: str = "light") -> Page:
    page = opened.new_context(viewport=SIZE, device_scale_factor=SCALE, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.goto(url)
    page.wait_for_selector("[data-chart=loss] path.curve", state="attached")
    page.wait_for_timeout(1500)  # the other charts
    return page


def address(name: str) -> str:
    return name_of(Path("runs", name).resolve())


def overfitting(opened: Browser, url: str, into: Path) -> None:
    keep(opened_page(opened, f"{url}#/run/{address('tiny-data')}"), into)


def comparison(opened: Browser, url: str, into: Path) -> None:
    runs = ",".join(map(address, ("modern-muon", "gpt2-seed-1", "gpt2-seed-2")))
    page = opened_page(opened, f"{url}#/compare/{runs}", "dark")
    box = page.locator("[data-chart=loss] .plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.5)
    page.wait_for_timeout(300)
    keep(page, into)


def hindi(opened: Browser, url: str, into: Path) -> None:
    """A finding leads to its place on the curve."""
    page = opened_page(opened, f"{url}#/run/{address('blown-up')}")
    page.click("[data-act=lang-hi]")
    page.wait_for_selector("html[lang=hi]")
    page.wait_for_timeout(1000)
    page.click(".finding .jump button")
    page.wait_for_timeout(1500)
    keep(page, into)


def keep(page: Page, into: Path) -> None:
    """256 colours are enough for a page, and a third of the size."""
    from PIL import Image

    Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256).save(into, optimize=True)
    page.context.close()


if __name__ == "__main__":
    main()
