"""A process that encodes with tiktoken: text and bounds come in on stdin, ids and bounds go out on stdout, until stdin ends.

Not a multiprocessing worker: those import the caller's script again, and a user's script need not stand for that.
"""

from __future__ import annotations

import io
import signal
import struct
import sys
from pathlib import Path
from typing import IO, cast

import numpy as np

_HEADER = struct.Struct("<2sq")


def main(folder: str) -> None:
    from nanolens.data.encoders import encode_each
    from nanolens.data.tokenizers import BytePairTokenizer, tokenizer_from_files

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us; then our stdin ends
    tokenizer = tokenizer_from_files(Path(folder))
    assert isinstance(tokenizer, BytePairTokenizer)
    source, sink = cast(io.BufferedReader, sys.stdin.buffer), sys.stdout.buffer
    while source.peek(1):
        for array in encode_each(tokenizer, read_array(source), read_array(source)):
            write_array(sink, array)
        sink.flush()


def write_array(file: IO[bytes], array: np.ndarray) -> None:
    kind = np.dtype(array.dtype).str[1:].encode()
    file.write(_HEADER.pack(kind, array.nbytes))
    file.write(np.ascontiguousarray(array).view(np.uint8).data)


def read_array(file: IO[bytes]) -> np.ndarray:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError("an encoding process ended early")
    kind, size = _HEADER.unpack(header)
    return np.frombuffer(file.read(size), dtype=np.dtype(kind.decode()))


if __name__ == "__main__":
    main(sys.argv[1])
