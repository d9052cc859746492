"""meta.pkl from strangers: plain data is read, nothing is ever run."""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.data import token_files
from nanolens.data.token_files import UnsafePickle, plain_value, read_plain_pickle
from nanolens.errors import UserError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=30,
)


@given(value=plain, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_are_what_pickle_says_they_are(value, protocol: int):
    payload = pickle.dumps(value, protocol)
    if (protocol == 2 and b"_codecs" in payload) or b"__builtin__" in payload:
        return  # before protocol 3, bytes are made by calling a function
    assert plain_value(payload) == pickle.loads(payload) == value


def test_shared_values_and_nanogpts_own_file():
    characters = sorted("\n !abc")
    meta = {"vocab_size": 6, "itos": dict(enumerate(characters)), "stoi": {c: n for n, c in enumerate(characters)}}
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert plain_value(pickle.dumps(meta, protocol)) == meta
    shared = ["x"] * 3
    assert plain_value(pickle.dumps([shared, shared])) == [shared, shared]


class Runs:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def payloads(canary: Path) -> list[bytes]:
    command = f"touch {canary}"
    found = [
        pickle.dumps(Runs(call, argument), protocol)
        for call, argument in (
            (os.system, command),
            (eval, f"open({str(canary)!r}, 'w')"),
            (exec, f"open({str(canary)!r}, 'w')"),
            (subprocess.getoutput, command),
        )
        for protocol in range(6)
    ]
    found += [
        pickle.dumps({"vocab_size": 5, "itos": Runs(os.system, command)}),
        pickle.dumps(Path("x")),
        pickle.dumps({"n": 1 + 2j}),
    ]
    found.append(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")  # written by hand, protocol 0
    found.append(b"(S'touch " + str(canary).encode() + b"'\nios\nsystem\n.")  # INST
    return found


def test_nothing_is_run(tmp_path: Path):
    canary = tmp_path / "canary"
    for payload in payloads(canary):
        with pytest.raises(UnsafePickle):
            plain_value(payload)
    assert not canary.exists()


def test_a_memo_of_two_billion_places_takes_one():
    assert (
        plain_value(b"\x80\x04K\x01r" + struct.pack("<I", 2**31 - 1) + b".") == 1
    )  # Python's own reader asks for 16 GB


BOMBS = {
    "a string that claims 8 exabytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"x.",
    "bytes that claim 4 gigabytes": b"\x80\x04B" + struct.pack("<I", 2**32 - 1) + b"x.",
    "a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "a number of 2 GB": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"1.",
    "no end": b"\x80\x04}",
    "nothing on the stack": b"\x80\x04.",
    "a mark too few": b"\x80\x04u.",
    "append to a number": b"\x80\x04K\x01K\x02a.",
    "an unhashable key": b"\x80\x04}]K\x01s.",
    "an odd dict": b"\x80\x04}(K\x01u.",
    "an unknown place": b"\x80\x04h\x05.",
    "a persistent id": b"\x80\x04Pwhatever\n.",
    "an extension": b"\x80\x04\x82\x01.",
    "not a pickle": b"hello",
    "empty": b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_and_rubble_are_refused_without_taking_memory(name: str):
    with pytest.raises(UnsafePickle):
        plain_value(BOMBS[name])


@given(payload=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(payload: bytes):
    with contextlib.suppress(UnsafePickle):
        plain_value(payload)


@given(value=plain, data=st.data())
def test_any_change_of_a_byte_is_a_value_or_refused(value, data):
    payload = bytearray(pickle.dumps(value))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnsafePickle):
        plain_value(bytes(payload))


def test_files_beyond_reason_are_not_opened(tmp_path: Path, monkeypatch):
    path = tmp_path / "meta.pkl"
    with open(path, "wb") as file:
        file.truncate(token_files.MOST_PICKLE_BYTES + 1)
    with pytest.raises(UserError, match="was not opened: it is 67,108,865 bytes long"):
        read_plain_pickle(path)
    monkeypatch.setattr(token_files, "MOST_INSTRUCTIONS", 100)
    path.write_bytes(pickle.dumps(list(range(200))))
    with pytest.raises(UserError, match="it is too long"):
        read_plain_pickle(path)


def test_the_reason_names_what_the_file_wanted(tmp_path: Path):
    path = tmp_path / "meta.pkl"
    path.write_bytes(pickle.dumps(Runs(os.system, "true"), 2))
    with pytest.raises(UserError, match="GLOBAL with 'posix system'"):
        read_plain_pickle(path)


def test_the_instructions_that_are_followed_build_data_only():
    """Whatever a pickle can do beyond building plain values, this reader does not know."""
    known = token_files.PLAIN_INSTRUCTIONS
    assert known <= {opcode.name for opcode in pickletools.opcodes}
    dangerous = {
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "BUILD",
        "INST",
        "OBJ",
        "NEWOBJ",
        "NEWOBJ_EX",
        "EXT1",
        "EXT2",
        "EXT4",
        "PERSID",
        "BINPERSID",
    }
    assert not known & dangerous
