"""Files that mean harm, or are broken: checkpoints, safetensors, configs, tokenizers. Each is a folder or file that
`import` is pointed at.

python tests/convert/hostile.py FOLDER      imports them all in this process and prints the peak of its memory
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Make = Callable[[Path], Path]
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 8, "bias": False, "vocab_size": 17}
PAYLOADS: dict[str, Make] = {}


class Runs:
    def __init__(self, function: Any, *arguments: Any):
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def payload(name: str) -> Callable[[Make], Make]:
    def keep(make: Make) -> Make:
        PAYLOADS[name] = make
        return make

    return keep


def archive(
    path: Path, data: bytes, entries: dict[str, bytes] | None = None, compress: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", compress) as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/version", b"3\n")
        file.writestr("archive/byteorder", b"little")
        for name, content in (entries or {}).items():
            file.writestr(f"archive/{name}", content)
    return path


def canary(folder: Path) -> Path:
    return folder / "canary"


# --- checkpoints that would run something


def _calls(folder: Path) -> dict[str, bytes]:
    touch = f"touch {canary(folder)}"
    made = {
        f"{call.__module__}.{call.__name__}": Runs(call, argument)
        for call, argument in (
            (os.system, touch),
            (eval, f"open({str(canary(folder))!r}, 'w')"),
            (exec, f"open({str(canary(folder))!r}, 'w')"),
            (os.remove, "/nowhere"),
            (__import__, "antigravity"),
            (open, str(canary(folder))),
        )
    }
    found = {name: pickle.dumps({"model": value, "model_args": SHAPE}, 2) for name, value in made.items()}
    found["INST"] = b"(S'" + touch.encode() + b"'\nios\nsystem\n."
    found["OBJ"] = b"\x80\x02(cos\nsystem\nS'" + touch.encode() + b"'\no."
    found["NEWOBJ"] = b"\x80\x02csubprocess\nPopen\n(S'" + touch.encode() + b"'\nt\x81."
    found["STACK_GLOBAL"] = (
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch.encode() + b"\x85R."
    )
    inner = pickle.dumps(Runs(os.system, touch), 2)
    found["_load_from_bytes"] = b"\x80\x02ctorch.storage\n_load_from_bytes\nC" + bytes([len(inner)]) + inner + b"\x85R."
    found["torch.load"] = b"\x80\x02ctorch.serialization\nload\nU\x05a.pkl\x85R."
    found["BUILD of a class"] = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb."
    found["a name called without arguments"] = b"\x80\x02ctorch\nFloatStorage\n)R."
    found["a builtin by another road"] = b"\x80\x02c__builtin__\ngetattr\ncos\nX\x06\x00\x00\x00system\x86R."
    found["an extension"] = b"\x80\x02\x82\x01."
    return found


for _name in _calls(Path("/nowhere")):

    @payload(f"a checkpoint that calls {_name}")
    def _(folder: Path, name: str = _name) -> Path:
        return archive(folder / "ckpt.pt", _calls(folder)[name])


@payload("a checkpoint of the old form, a bare pickle")
def _(folder: Path) -> Path:
    (folder / "ckpt.pt").write_bytes(pickle.dumps(Runs(os.system, f"touch {canary(folder)}")))
    return folder


# --- checkpoints that would take all memory, or lie about what they hold


def _tensor(shape: tuple[Any, ...], stride: tuple[Any, ...], count: Any = 4, offset: Any = 0, key: str = "0") -> bytes:
    """`_rebuild_tensor_v2` of a storage, written by hand."""
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX"
        + struct.pack("<I", len(key))
        + key.encode()
        + b"X\x03\x00\x00\x00cpu"
    )
    number = pickle.dumps(count, 2)[2:-1]
    whole = (
        b"\x80\x02}(X\x05\x00\x00\x00model}X\x16\x00\x00\x00transformer.wte.weightctorch._utils\n_rebuild_tensor_v2\n("
    )
    items = b"".join(pickle.dumps(value, 2)[2:-1] for value in (offset, shape, stride, False))
    return (
        whole
        + storage
        + number
        + b"tQ"
        + items
        + b"}tRsX\x0a\x00\x00\x00model_args"
        + pickle.dumps(SHAPE, 2)[2:-1]
        + b"u."
    )


TENSORS: dict[str, tuple[dict[str, Any], dict[str, bytes]]] = {
    "a shape of 10^12 by strides of 0": ({"shape": (10**6, 10**6), "stride": (0, 0)}, {"data/0": bytes(16)}),
    "a shape beyond its numbers": ({"shape": (5,), "stride": (1,)}, {"data/0": bytes(16)}),
    "an offset beyond its numbers": ({"shape": (4,), "stride": (1,), "offset": 10**9}, {"data/0": bytes(16)}),
    "a negative offset": ({"shape": (4,), "stride": (1,), "offset": -4}, {"data/0": bytes(16)}),
    "a negative stride": ({"shape": (4,), "stride": (-1,)}, {"data/0": bytes(16)}),
    "more dimensions than there are": ({"shape": (1,) * 70, "stride": (1,) * 70}, {"data/0": bytes(16)}),
    "a shape of words": ({"shape": ("a",), "stride": (1,)}, {"data/0": bytes(16)}),
    "numbers that are not there": ({"shape": (4,), "stride": (1,), "key": "7"}, {"data/0": bytes(16)}),
    "numbers from another folder": (
        {"shape": (4,), "stride": (1,), "key": "../../../etc/passwd"},
        {"data/0": bytes(16)},
    ),
    "a count of 2^60 numbers": ({"shape": (4,), "stride": (1,), "count": 2**60}, {"data/0": bytes(16)}),
}

for _name in TENSORS:

    @payload(f"a checkpoint with {_name}")
    def _(folder: Path, name: str = _name) -> Path:
        about, entries = TENSORS[name]
        return archive(folder / "ckpt.pt", _tensor(**about), entries)


@payload("a checkpoint whose pickle is a zip bomb")
def _(folder: Path) -> Path:
    with (
        zipfile.ZipFile(folder / "ckpt.pt", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("archive/data.pkl", "w") as entry,
    ):
        for _ in range(512):
            entry.write(bytes(1 << 20))
    return folder


@payload("a checkpoint with a million entries")
def _(folder: Path) -> Path:
    path = folder / "ckpt.pt"
    record = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = record * 1_000_000
    path.write_bytes(directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0))
    return path


@payload("a checkpoint whose entries are one another")
def _(folder: Path) -> Path:
    path = archive(folder / "ckpt.pt", b"\x80\x02}.", {f"data/{n}": bytes(1 << 16) for n in range(8)})
    content = bytearray(path.read_bytes())
    at, first = content.find(b"PK\x01\x02"), None
    while at >= 0:  # each entry of the list points at the first one's place, and claims all of the file
        first = 0 if first is None else first
        content[at + 20 : at + 28] = struct.pack("<LL", 300_000, 300_000)
        content[at + 42 : at + 46] = struct.pack("<L", first)
        at = content.find(b"PK\x01\x02", at + 4)
    path.write_bytes(content)
    return path


@payload("a checkpoint with a dict of a million dicts")
def _(folder: Path) -> Path:
    return archive(folder / "ckpt.pt", b"\x80\x02" + b"}" * 20_000_000 + b".")


@payload("a checkpoint with sets that fill the memory")
def _(folder: Path) -> Path:
    return archive(folder / "ckpt.pt", b"\x80\x04" + b"\x8f" * 5_000_000 + b".")


@payload("a checkpoint with a key that takes years to hash")
def _(folder: Path) -> Path:
    doubled = b"".join(b"\x86q" + bytes([n]) + b"h" + bytes([n]) for n in range(200))
    return archive(folder / "ckpt.pt", b"\x80\x02}K\x01K\x01" + doubled + b"\x86K\x01s.")


@payload("a checkpoint with a string that claims 8 exabytes")
def _(folder: Path) -> Path:
    return archive(folder / "ckpt.pt", b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"x.")


@payload("a checkpoint of a model with a billion blocks")
def _(folder: Path) -> Path:
    return archive(folder / "ckpt.pt", pickle.dumps({"model": {}, "model_args": {**SHAPE, "n_layer": 10**9}}, 2))


@payload("a checkpoint of the largest model that is allowed, without a weight")
def _(folder: Path) -> Path:
    sizes = {**SHAPE, "n_layer": 1000, "n_embd": 100_000, "n_head": 1000, "vocab_size": 10_000_000}
    return archive(folder / "ckpt.pt", pickle.dumps({"model": {}, "model_args": sizes}, 2))


@payload("a checkpoint whose tensors all have the same few numbers")
def _(folder: Path) -> Path:
    import torch

    from nanolens.config.fields import Config
    from nanolens.convert.foreign import parameters_of, to_theirs

    sizes = {**SHAPE, "n_layer": 1000, "n_embd": 100_000, "n_head": 1000, "vocab_size": 10_000_000}
    shapes = parameters_of(Config(**{key: sizes[key] for key in sizes if key != "vocab_size"}), 10_000_000)
    one = torch.zeros(1)
    model = {to_theirs(name): one.expand(tensor.shape) for name, tensor in shapes.items()}
    torch.save({"model": model, "model_args": sizes, "iter_num": 1}, folder / "ckpt.pt")
    return folder


@payload("a checkpoint with sizes of the wrong kinds")
def _(folder: Path) -> Path:
    sizes = {"n_layer": "x", "n_head": -1, "n_embd": 2.5, "block_size": None, "bias": "yes", "vocab_size": [1]}
    return archive(folder / "ckpt.pt", pickle.dumps({"model": {}, "model_args": sizes}, 2))


@payload("a checkpoint that is cut off")
def _(folder: Path) -> Path:
    path = archive(folder / "ckpt.pt", pickle.dumps({"model": {}, "model_args": SHAPE}, 2), {"data/0": bytes(9999)})
    path.write_bytes(path.read_bytes()[:-500])
    return path


@payload("a checkpoint that is empty")
def _(folder: Path) -> Path:
    (folder / "ckpt.pt").touch()
    return folder


@payload("a checkpoint that is a link to another file")
def _(folder: Path) -> Path:
    (folder / "ckpt.pt").symlink_to("/etc/hostname")
    return folder


@payload("a checkpoint that is a link to endless zeros")
def _(folder: Path) -> Path:
    (folder / "ckpt.pt").symlink_to("/dev/zero")
    return folder


@payload("a checkpoint that is a pipe")
def _(folder: Path) -> Path:
    os.mkfifo(folder / "ckpt.pt")
    return folder


@payload("a checkpoint whose name leads out of the archive")
def _(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "ckpt.pt", "w") as file:
        file.writestr("../canary", b"x")
        file.writestr("/tmp/../canary/data.pkl", b"\x80\x02}.")
    return folder


@payload("a checkpoint that names data elsewhere")
def _(folder: Path) -> Path:
    whole = {"model": {}, "model_args": SHAPE, "config": {"dataset": "../" * 20 + "etc"}}
    return archive(folder / "ckpt.pt", pickle.dumps(whole, 2))


# --- nanoGPT's meta.pkl


@payload("a meta.pkl that runs")
def _(folder: Path) -> Path:
    import torch

    from nanolens.config.fields import Config
    from nanolens.convert.foreign import to_theirs
    from nanolens.model import build

    sizes = {key: value for key, value in SHAPE.items() if key != "vocab_size"}
    model = {to_theirs(name): tensor.detach() for name, tensor in build(Config(**sizes), 17).named_parameters()}
    torch.save({"model": model, "model_args": SHAPE, "iter_num": 1, "config": {}}, folder / "ckpt.pt")
    (folder / "meta.pkl").write_bytes(
        pickle.dumps({"vocab_size": 17, "itos": Runs(os.system, f"touch {canary(folder)}")})
    )
    return folder


# --- safetensors


def safe(
    folder: Path, header: bytes | dict[str, Any], body: bytes = b"", length: int | None = None, config: Any = None
) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + body)
    shape = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 4, "vocab_size": 50257}
    (folder / "config.json").write_text(json.dumps(shape) if config is None else config)
    return folder


def _entry(shape: list[Any], start: Any = 0, end: Any = 16, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


SAFETENSORS: dict[str, dict[str, Any]] = {
    "a header of 2^63 bytes": {"header": b"{}", "length": 2**63},
    "a header longer than the file": {"header": b"{}", "length": 5000},
    "a header of half a gigabyte": {"header": b" " * 100, "length": 512 << 20},
    "a header that is no JSON": {"header": b"{nothing"},
    "a header that is no text": {"header": b"\xff\xfe{}"},
    "a header that is a list": {"header": b"[1, 2]"},
    "a header a million deep": {"header": b'{"a":' * 1_000_000},
    "a million tensors": {"header": b"{" + b",".join(b'"%d":0' % n for n in range(1_000_000)) + b"}"},
    "offsets that overlap": {"header": {"wte.weight": _entry([2, 2]), "wpe.weight": _entry([2, 2])}, "body": bytes(16)},
    "offsets behind the end": {"header": {"wte.weight": _entry([50257, 4], 0, 804112)}, "body": bytes(16)},
    "offsets that run backwards": {"header": {"wte.weight": _entry([2, 2], 16, 0)}, "body": bytes(16)},
    "a shape that overflows": {"header": {"wte.weight": _entry([2**40, 2**40])}, "body": bytes(16)},
    "a negative shape": {"header": {"wte.weight": _entry([-2, -2])}, "body": bytes(16)},
    "a shape of words": {"header": {"wte.weight": _entry(["x"])}, "body": bytes(16)},
    "an unknown kind of numbers": {"header": {"wte.weight": _entry([2, 2], dtype="X" * 100_000)}, "body": bytes(16)},
    "no tensors": {"header": {"__metadata__": {"a": "b"}}},
    "a config a million deep": {"header": {}, "config": '{"a":' * 1_000_000},
    "a config with sizes of the wrong kinds": {
        "header": {},
        "config": '{"model_type": "gpt2", "n_layer": "1", "n_head": 0, "vocab_size": 1e99}',
    },
    "a config that asks for code": {
        "header": {},
        "config": '{"model_type": "own", "auto_map": {"AutoModel": "canary.Model"}}',
    },
    "a config of the largest model": {
        "header": {},
        "config": '{"model_type": "gpt2", "n_layer": 1000, "n_head": 1000, "n_embd": 100000, "n_positions": 1048576, "vocab_size": 10000000}',
    },
}

for _name in SAFETENSORS:

    @payload(f"safetensors with {_name}")
    def _(folder: Path, name: str = _name) -> Path:
        (folder / "canary.py").write_text(f"open({str(canary(folder))!r}, 'w')")
        return safe(folder, **SAFETENSORS[name])


@payload("a tokenizer a million deep")
def _(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text('{"model":' * 1_000_000)
    return safe(folder, {})


def import_all(folder: Path) -> int:
    from nanolens.convert.importing import import_model
    from nanolens.errors import UserError

    passed = 0
    for number, (name, make) in enumerate(PAYLOADS.items()):
        place = folder / str(number)
        place.mkdir(parents=True)
        source = make(place)
        try:
            import_model(str(source), str(place / "run"))
            print("IMPORTED", name)
        except UserError:
            passed += 1
        if canary(place).exists():
            print("RAN", name)
    return passed


if __name__ == "__main__":
    print(f"{import_all(Path(sys.argv[1]))} of {len(PAYLOADS)} refused")
    # Not getrusage: its peak is that of the process that started this one, where that was larger.
    status = Path("/proc/self/status").read_text()
    print("PEAK", int(status.split("VmHWM:")[1].split()[0]) << 10)
