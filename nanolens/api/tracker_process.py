"""The process behind a tracker of a run that goes on: `python -m nanolens.api.tracker_process TRACKER RUN PARENT`.

It reads the record as it grows and hands rows on. It takes no more of the processor than the training leaves over, never tries longer than
the training lives, and ends without asking the library, which might not let it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from nanolens.record.layout import EVENTS_FILE, tracker_file
from nanolens.trackers.sender import Kept, Sender

POLL_S = 1.0
LONGEST_PAUSE_S = 60.0  # between two tries after a failure
ORPHAN_S = float(os.environ.get("NANOLENS_ORPHAN_S", "20"))  # how long it may go on when the training is gone


def main(tracker: str, run: str, parent: str) -> int:
    folder = Path(run)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    threading.Thread(target=_end_with, args=(int(parent),), name="parent", daemon=True).start()
    Kept(tracker_file(folder, tracker)).write(pid=os.getpid(), because="", is_closed=False)
    try:
        from nanolens.interop.trackers import tracker_named

        sender = Sender(folder, tracker, tracker_named(tracker))
        sender.outlet.kept.write(pid=os.getpid(), because="", is_closed=False)  # it may have begun its notes anew
        sender.open()
        import nanolens.diagnosis
        import nanolens.present.markdown  # noqa: F401  now, while there is time: at the end there are only seconds

        _follow(sender, int(parent))
    except BaseException as error:
        traceback.print_exc()
        Kept(tracker_file(folder, tracker)).write(because=_words(error))
        return 1
    return 0


def _follow(sender: Sender, parent: int) -> None:
    failures = 0
    while True:
        is_last = _is_over(sender.folder, parent)  # asked before reading: what was written last is then read as well
        try:
            sender.pump()
            if failures:
                failures = 0
                sender.outlet.kept.write(because="")
            if sender.has_ended or is_last:
                sender.finish()
                return
            time.sleep(POLL_S)
        except Exception as error:
            traceback.print_exc()
            failures += 1
            sender.outlet.kept.write(because=_words(error), failures=failures)
            if is_last:
                raise
            _pause(min(POLL_S * 2**failures, LONGEST_PAUSE_S), sender.folder, parent)


def _pause(longest_s: float, folder: Path, parent: int) -> None:
    until_s = time.monotonic() + longest_s
    while time.monotonic() < until_s and not _is_over(folder, parent):
        time.sleep(POLL_S / 4)


def _is_over(folder: Path, parent: int) -> bool:
    """Whether no more will be written: the run has ended, or its process is gone."""
    with contextlib.suppress(OSError), open(folder / EVENTS_FILE, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        if file.read().rstrip(b"\n").rpartition(b"\n")[2].startswith(b'{"event":"run_ended"'):
            return True
    return not _lives(parent)


def _end_with(parent: int) -> None:
    while _lives(parent):
        time.sleep(1.0)
    time.sleep(ORPHAN_S)
    os._exit(3)


def _lives(parent: int) -> bool:
    if os.name != "nt":
        return os.getppid() == parent
    import psutil

    return psutil.pid_exists(parent)


def _words(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}".strip().splitlines()
    return said[0][:300] if said else type(error).__name__


if __name__ == "__main__":
    code = main(*sys.argv[1:4])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a library's own leave-taking may hang
