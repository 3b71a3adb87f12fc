"""A dtype string of 900 kB kept the decoder busy for 31 s; a small file may claim terabytes.

What others send or hand over is refused in about the time that its bytes take to arrive.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from intarsia.core.files import npz
from intarsia.core.files.json_text import parse_json
from intarsia.core.settings import read_toml
from intarsia.data.reader import read
from intarsia.data.source import Source
from intarsia.deployment.operations.backup import restore
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer
from intarsia.errors import CheckpointError, CodecError, ExperimentError, TableError
from intarsia.models.serialization import _arrays, _read_arrays, read_model
from intarsia.results import run_folder

SECONDS = 2.0  # a thousandth of that where nothing else runs
MB = 2**20


def length(number):
    return struct.pack("<Q", number)


def text(said):
    return length(len(said)) + said


def array(dtype, shape, data=b"", axes=None):
    count = len(shape) if axes is None else axes
    return b"a" + text(dtype) + length(count) + b"".join(map(length, shape)) + data


def nested(opening, depth=300_000):
    return opening * depth


MESSAGES = {
    "long dtype": array(b"(" * 450_000 + b")" * 450_000, (1,)),
    "dtype of many fields": array(b"i4," * 300_000, (1,)),
    "dtype of a repeated shape": array(b"(9,9)f8", (1,), b"\0" * 648),
    "dtype of records": array(b"|V8", (1,), b"\0" * 8),
    "dtype of objects": array(b"|O8", (1,), b"\0" * 8),
    "dtype of dates": array(b"<M8", (1,), b"\0" * 8),
    "wide text": array(b"<U999999999", (0, 3)),
    "no bytes a value": array(b"<U0", (2**62,)),
    "terabytes": array(b"<f8", (2**40,)),
    "a product beyond 64 bits": array(b"<f8", (2**33, 2**33)),
    "a product of all bits": array(b"<f8", (2**63,) * 60),
    "empty and endless": array(b"<f8", (0, 2**64 - 1)),
    "empty and long": array(b"<f8", (0, 2**63 - 1)),
    "many axes": array(b"<f8", (2**63,) * 100_000),
    "one byte and many axes": array(b"|b1", (1,) * 100_000, b"\0"),
    "no axes there": array(b"<f8", (), axes=2**60),
    "by column": b"f" + array(b"<f8", (2**63,) * 100_000)[1:],
    "tuples in tuples": nested(b"t" + length(1)),
    "mappings in mappings": nested(b"m" + length(1) + text(b"")),
    "records in records": nested(b"c" + text(b"Answer") + length(1) + text(b"run")),
    "a long tuple": b"t" + length(2**62),
    "a long mapping": b"m" + length(2**62) + bytes(MB),
    "a mapping of few": b"m" + length(2**17) + bytes(MB),
    "long text": b"s" + length(2**63),
    "long bytes": b"b" + length(2**64 - 1),
    "long name of a record": b"c" + text(b"A" * MB) + length(0),
    "record of many fields": b"c" + text(b"Answer") + length(2**60),
    "record of one field": b"c" + text(b"Answer") + length(10**6) + (text(b"run") + b"N") * 10**6,
    "long name of a field": b"c" + text(b"Answer") + length(1) + text(b"A" * MB) + b"N",
    "unknown tag": b"\xff",
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_the_decoder_refuses_it_at_once(name):
    body = MESSAGES[name]
    data = codec._MAGIC + struct.pack("<I", zlib.crc32(body)) + body
    tracemalloc.start()
    try:
        start = time.process_time()
        with pytest.raises(CodecError) as refused:
            codec.decode(data, Answer)
        taken, most = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 1000
    assert most < 64 * MB
    assert taken < SECONDS


@pytest.mark.parametrize("tuples", [1, 30])
def test_a_message_of_many_small_values_is_refused(tuples, monkeypatch):
    """Each takes a byte of the message, and a hundred times the time of other bytes."""
    monkeypatch.setattr(codec, "_MOST_VALUES", 2_000)
    inner = b"t" + length(2_100 // tuples) + b"N" * (2_100 // tuples)
    body = b"t" + length(tuples) + inner * tuples
    data = codec._MAGIC + struct.pack("<I", zlib.crc32(body)) + body
    with pytest.raises(CodecError, match="more than 2000 values"):
        codec.decode(data)


@pytest.mark.parametrize("value", [
    np.zeros((1,) * 64), np.zeros((0, 5)), np.array(["ab", ""]), np.array([b"x"]), np.array(True),
    np.arange(4, dtype=">i2"), np.asfortranarray(np.ones((2, 3))), np.zeros(2, "<c16"),
    np.zeros(0, "<U9"),
])  # fmt: skip
def test_arrays_of_numbers_and_text_are_read_as_before(value):
    found = codec.decode(codec.encode(value))
    np.testing.assert_array_equal(found, value)
    assert (found.dtype, found.shape, found.flags.f_contiguous) == (
        *(value.dtype, value.shape, value.flags.f_contiguous),
    )


def header(shape, dtype="<f8"):
    data = io.BytesIO()
    known = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(data, known)
    return data.getvalue()


def archive(path, members, packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


ARCHIVES = {
    "terabytes announced": {"x": header((10**12, 2))},
    "more than there is": {"x": header((10, 2)) + bytes(80)},
    "less than there is": {"x": header((1, 2)) + bytes(MB)},
    "beyond all bits": {"x": header((2**40, 2**40))},
    "endless text": {"x": header((4,), "<U900000000")},
    "deep header": {"x": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000},
    "another version": {"x": b"\x93NUMPY\x09\x00" + bytes(100)},
    "no array": {"x": b"hello"},
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_npz_table_has_the_bytes_of_its_shapes(tmp_path, name):
    path = archive(tmp_path / "t.npz", ARCHIVES[name])
    tracemalloc.start()
    try:
        with pytest.raises(TableError, match="not an npz file of plain arrays"):
            read(Source(name="bank", path=str(path)))
        with pytest.raises((ValueError, zipfile.BadZipFile)):
            _read_arrays(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * MB
    finally:
        tracemalloc.stop()


def test_an_npz_file_unpacks_to_no_more_than_its_size_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "_LARGE", MB)
    rows = np.zeros((2**21, 1))
    data = header(rows.shape) + rows.tobytes()
    path = archive(tmp_path / "t.npz", {"x": data})
    with pytest.raises(TableError, match="bytes and would unpack to 16,777"):
        read(Source(name="bank", path=str(path)))
    plain = archive(tmp_path / "t.npz", {"x": data}, zipfile.ZIP_STORED)
    assert read(Source(name="bank", path=str(plain))).values.shape == rows.shape
    # a model's arrays are never packed
    small = archive(tmp_path / "small.npz", {"x": header((100, 100)) + bytes(80_000)})
    with pytest.raises(ValueError, match="would unpack to 80,"):
        _read_arrays(small)
    np.savez_compressed(tmp_path / "fair.npz", x=np.arange(20.0).reshape(10, 2), y=np.arange(10))
    assert read(Source(name="bank", path=str(tmp_path / "fair.npz"))).values.shape == (10, 2)


def test_a_gzip_table_unpacks_to_no_more_than_its_size_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "_LARGE", MB)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TableError, match=r"bytes and would unpack to more than [\d,]+; unpack"):
            read(Source(name="bank", path=str(path)))
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
    finally:
        tracemalloc.stop()


def tar_header(name, size=0, kind=tarfile.REGTYPE):
    one = tarfile.TarInfo(name)
    one.type = kind
    data = bytearray(one.tobuf(tarfile.GNU_FORMAT)[:512])
    data[124:136] = bytes([255 if size < 0 else 128]) + size.to_bytes(11, "big", signed=True)
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * ord(" ") + sum(data[156:]))
    return bytes(data)


def pax(record):
    return tar_header("x", len(record), tarfile.XHDTYPE) + record + bytes(-len(record) % 512)


TARS = {
    "that lead back": tar_header("a") + tar_header("b", -512),
    "before the start": tar_header("a") + tar_header("b", -(2**78)),
    "beyond all bits": tar_header("a", 2**78),
    "with long names for ever": (tar_header("n", 2, tarfile.GNUTYPE_LONGNAME) + bytes(512)) * 3000,
    "of no time": pax(b"15 mtime=1e300\n") + tar_header("a"),
    "with an end in a name": pax(b"14 path=a\0bcd\n") + tar_header("a"),
    "without a name": tar_header("."),
}


@pytest.mark.parametrize("name", TARS)
def test_a_tar_file_of_odd_members_is_refused_at_once(tmp_path, monkeypatch, name):
    path, kit, read_next, count = tmp_path / "t.tar", tmp_path / "kit", tarfile.TarFile.next, [0]

    def counted(archive):
        count[0] += 1
        assert count[0] < 100, "members come for ever"
        return read_next(archive)

    monkeypatch.setattr(tarfile.TarFile, "next", counted)
    path.write_bytes(TARS[name] + bytes(1024))
    with pytest.raises(ExperimentError, match=r"is no whole file|nothing was unpacked"):
        restore(path, kit, 0.0)
    assert [one.name for one in tmp_path.iterdir()] == ["t.tar"]


DEEP = {"lists": "[" * 200_000, "tables": '{"a":' * 200_000}


@pytest.mark.parametrize("name", DEEP)
def test_deep_text_is_refused_in_a_sentence(tmp_path, name):
    with pytest.raises(ValueError, match="too deep"):
        parse_json(DEEP[name])
    for file in ("linear.json", "networks.json", "clients.json"):
        folder = tmp_path / file
        folder.mkdir()
        (folder / file).write_text(DEEP[name])
        with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
            read_model(folder)
    (tmp_path / "experiment.json").write_text(DEEP[name])
    with pytest.raises(CheckpointError, match="is no JSON"):
        run_folder.describe(tmp_path)


def test_a_deep_settings_file_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "a.toml").write_text(f"a = {'[' * 100_000}")
    with pytest.raises(ExperimentError, match="not valid TOML"):
        read_toml(tmp_path / "a.toml", "the file", ("a",))
    (tmp_path / "b.toml").write_text(f"a = {'9' * 5_000}")
    with pytest.raises(ExperimentError, match="more than 4,300 digits"):
        read_toml(tmp_path / "b.toml", "the file", ("a",))


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return the model folder of a small run of hyfem."""
    pytest.importorskip("torch")
    import intarsia

    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("hyfem")
    tables = {}
    for name in ("north", "south"):
        x = rng.normal(size=(40, 2))
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1]})
        tables[name] = frame.assign(kind=np.where(x[:, 0] > 0, "p", "q"))
    own = {"features": 2, "extractor_hidden": [4], "hidden": [4], "steps": 1, "batch": 8}
    how = {"algorithm": "hyfem", "rounds": 1, "yardsticks": False, "label": "kind", **own}
    intarsia.run(tables=tables, out=folder, **how)
    return folder / "model"


EXTRACTOR = {"kind": "perceptron", "shape": [2], "width": 2, "hidden": [4]}
LARGE = {
    "classifier": {"hidden": [60_000, 60_000]},
    "many layers": {"hidden": [4] * 50_000},
    "outputs": {"outputs": 10**9},
    "beyond all bits": {"hidden": [2**62, 2**62]},
    "extractor": {"extractors": [{**EXTRACTOR, "hidden": [60_000, 60_000]}]},
    "extractor's rows": {"extractors": [{**EXTRACTOR, "shape": [10**9]}]},
    "another kind": {"extractors": [{**EXTRACTOR, "kind": "resnet18", "shape": [3, 4000, 4000]}]},
    "no number": {"hidden": ["many"]},
    "fewer": {"hidden": []},
}


@pytest.mark.parametrize("name", LARGE)
def test_a_model_that_names_large_layers_and_holds_small_ones_is_refused(networks, tmp_path, name):
    folder = Path(shutil.copytree(networks, tmp_path / "model"))
    for path in [*folder.glob("clients/*.npz"), folder / "server.npz"]:
        arrays = _read_arrays(path)
        content = {**json.loads(str(arrays["composition"])), **LARGE[name]}
        path.write_bytes(_arrays({**arrays, "composition": np.array(json.dumps(content))}))
    start = time.process_time()
    with pytest.raises(CheckpointError, match="is not a model that this version wrote"):
        read_model(folder)
    assert time.process_time() - start < 2 * SECONDS


@pytest.mark.parametrize("place", ["../other.npz", "/etc/hostname", "clients/../../other.npz"])
def test_a_model_reads_no_file_beside_its_folder(networks, tmp_path, place):
    folder = Path(shutil.copytree(networks, tmp_path / "model"))
    shutil.copy(next(folder.glob("clients/*.npz")), tmp_path / "other.npz")
    known = json.loads((folder / "networks.json").read_text())
    known["clients"] = {"north": place}
    (folder / "networks.json").write_text(json.dumps(known))
    with pytest.raises(CheckpointError, match="is no file of the folder"):
        read_model(folder)
