"""The file itself: what it looks like to others, and what damage does to it."""

import contextlib
import copy
import json
import os
import struct
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate._saving.file import File
from purestate.errors import CorruptFileError, LoadError
from tests.helpers import exactly, python


class Opt(ps.State):
    count: jax.Array
    mu: Any


class Train(ps.State):
    w: jax.Array
    opt: Opt
    key: jax.Array
    width: int = ps.static(default=8)


def train():
    return Train(
        w=jnp.arange(6.0).reshape(2, 3),
        opt=Opt(count=jnp.int16(7), mu=(np.arange(3), 2.5)),
        key=jax.random.key(0),
    )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "8.safetensors"
    ps.save(path, train())
    return path


def header_of(path):
    """Return the header of a file, and the arrays behind it."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_checksums(header, arrays):
    """Return a file with a header whose checksums are right, whatever it says."""
    texts = header.get("__metadata__", {})
    spans = [v.get("data_offsets") for k, v in header.items() if k != "__metadata__"]
    try:
        sums = [zlib.crc32(arrays[begin:end]) for begin, end in spans]
    except (TypeError, ValueError, struct.error):
        sums = [0] * len(spans)
    if texts.get("crc32", "") != "keep":
        texts["crc32"] = "0" * 8 + "".join(f"{s:08x}" for s in sums)
    text = json.dumps(header, separators=(",", ":"))
    at = text.index('"crc32":"') + len('"crc32":"')
    text = f"{text[:at]}{zlib.crc32(text.encode()):08x}{text[at + 8 :]}"
    return struct.pack("<Q", len(text)) + text.encode() + arrays


def forge(path, change, text=str):
    """Change header and manifest of a file, and make its checksums right."""
    header, arrays = header_of(path)
    manifest = json.loads(header["__metadata__"]["purestate"])
    change(header, manifest)
    header["__metadata__"]["purestate"] = text(json.dumps(manifest))
    path.write_bytes(with_checksums(header, arrays))


def test_the_file_that_the_tests_make_anew_is_the_same(path):
    before = path.read_bytes()

    forge(path, lambda header, manifest: None)

    assert train() == ps.load(path, Train)
    assert header_of(path)[0].keys() == json.loads(before[8:].split(b" ")[0]).keys()


# --- what others see --------------------------------------------------------------------


def test_safetensors_reads_it(path):
    numpy = pytest.importorskip(
        "safetensors.numpy", reason="safetensors needs the interop extra"
    )

    found = numpy.load_file(path)

    assert ["key", "opt.count", "opt.mu.0", "w"] == sorted(found)
    np.testing.assert_array_equal(train().w, found["w"])
    np.testing.assert_array_equal(train().opt.mu[0], found["opt.mu.0"])
    np.testing.assert_array_equal(jax.random.key_data(train().key), found["key"])


DTYPES = [
    "bool",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "complex64",
]


def test_safetensors_opens_it_whatever_it_holds(tmp_path):
    safetensors = pytest.importorskip(
        "safetensors", reason="safetensors needs the interop extra"
    )
    wide = {"f64": np.arange(3.0), "c128": np.ones(2, complex), "i64": np.arange(3)}
    arrays = {name: jnp.ones((2, 3), name) for name in DTYPES} | wide
    path = tmp_path / "t.safetensors"
    ps.save(path, arrays | {"empty": jnp.zeros((0, 3)), "__metadata__": jnp.ones(1)})

    with safetensors.safe_open(path, "np") as opened:
        assert {*arrays, "empty", "__metadata__~2"} == {*opened.keys()}
        assert "pt" == opened.metadata()["format"]
        assert (0, 3) == opened.get_tensor("empty").shape
        assert np.float64 == opened.get_tensor("f64").dtype


def test_arrays_begin_at_multiples_of_their_item_size(tmp_path):
    path = tmp_path / "t.safetensors"
    ps.save(path, [np.ones(3, np.int8), np.ones(3), np.ones(1, np.float16), np.ones(1)])
    header, arrays = header_of(path)
    start = os.path.getsize(path) - len(arrays)

    assert 0 == start % 64
    sizes = {"I8": 1, "F64": 8, "F16": 2}
    for name, facts in header.items():
        if name != "__metadata__":
            assert 0 == facts["data_offsets"][0] % sizes[facts["dtype"]]


def test_names_are_paths_and_stay_apart_where_they_clash(tmp_path):
    path = tmp_path / "t.safetensors"
    tree = {"a.b": jnp.ones(1), "a": {"b": jnp.ones(2), "~2": 0}, "a.b~2": jnp.ones(3)}

    ps.save(path, tree)

    found = {name: v.get("shape") for name, v in header_of(path)[0].items()}
    assert found == {"__metadata__": None, "a.b": [1], "a.b~2": [2], "a.b~2~2": [3]}
    assert 3 == len(ps.load(path, tree))


def test_a_name_that_is_no_unicode_is_still_one_that_others_read(tmp_path):
    path, tree = tmp_path / "t.safetensors", {"\ud800": jnp.ones(1), "é": jnp.ones(2)}

    ps.save(path, tree)

    assert {"\\ud800", "é"} == header_of(path)[0].keys() - {"__metadata__"}
    assert tree.keys() == ps.load(path).keys()


def test_the_file_is_little_larger_than_its_arrays(tmp_path):
    path = tmp_path / "t.safetensors"
    count = 300
    ps.save(
        path, Opt(count=jnp.int32(0), mu=[jnp.ones((16, 16)) for _ in range(count)])
    )

    assert os.path.getsize(path) <= 1024 * count + 4096 + 250 * count


# --- damage -----------------------------------------------------------------------------


def whole_or_refused(path, data):
    """Load damaged data, which must raise a LoadError or be what was saved."""
    path.write_bytes(data)
    try:
        found = ps.load(path, Train)
    except LoadError:
        return
    assert train() == found


def test_each_flipped_bit_of_the_header_is_found(path):
    ps.save(path, {"a": np.ones(1)})
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    missed = []
    with open(path, "r+b", buffering=0) as file:
        for bit in range(8 * (8 + length)):
            byte = data[bit // 8]
            os.pwrite(file.fileno(), bytes([byte ^ (1 << bit % 8)]), bit // 8)
            with contextlib.suppress(LoadError):
                missed.append((bit, ps.load(path)))
            os.pwrite(file.fileno(), bytes([byte]), bit // 8)

    assert not missed
    assert {"a": [1.0]} == ps.load(path, {"a": np.zeros(1)})


def test_each_flipped_byte_of_the_file_is_found(path):
    data = path.read_bytes()
    for i in range(0, len(data), 5):
        damaged = bytearray(data)
        damaged[i] ^= 0x10
        path.write_bytes(damaged)

        with pytest.raises(LoadError):
            ps.load(path, Train)


def test_each_shorter_file_is_refused(path):
    data = path.read_bytes()
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])

        with pytest.raises(CorruptFileError):
            ps.load(path, Train)


def test_zeros_and_insertions_are_found(path):
    data = path.read_bytes()
    for i in range(0, len(data), 11):
        whole_or_refused(path, data[:i] + bytes(9) + data[i + 9 :])
        whole_or_refused(path, data[:i] + b"7" + data[i:])


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "is shorter than a header": lambda data: b"1234567",
    "ends within its header: it was cut off, or it is no such file": (
        lambda data: data[:100]
    ),
    "has a header that is no JSON: it is damaged, or no such file": (
        lambda data: flipped(data, 8)
    ),
    "has a damaged header. Use an earlier file": (
        lambda data: data.replace(b"width", b"witdh")
    ),
    "has 37 bytes of arrays, and should have 58: it was cut off": (
        lambda data: data[:-21]
    ),
    "has 59 bytes of arrays, and should have 58: something was added to it": (
        lambda data: data + b"0"
    ),
    "is damaged: the bytes of opt.count do not have the checksum that they were saved "
    "with. Use an earlier file": lambda data: flipped(data, len(data) - 1),
}


@pytest.mark.parametrize(("text", "damage"), DAMAGES.items(), ids=range(len(DAMAGES)))
def test_a_damaged_file_says_what_is_wrong(path, text, damage):
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(CorruptFileError, match=exactly(f"{path} {text}")):
        ps.load(path, Train)


def test_a_file_that_is_no_such_file_is_refused(path):
    for data in (b"", b"\0" * 100, b"PK\x03\x04" + bytes(500), os.urandom(300)):
        path.write_bytes(data)

        with pytest.raises(CorruptFileError):
            ps.load(path)


def test_a_file_of_another_program_is_refused(path):
    text = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))

    with pytest.raises(
        LoadError,
        match=exactly(
            f"{path} was not written by ps.save: it has arrays but no classes. Read it "
            f"with safetensors.numpy.load_file."
        ),
    ):
        ps.load(path, Train)


def test_a_file_of_a_later_format_is_refused(path):
    def change(header, manifest):
        manifest["purestate"] = 2

    forge(path, change)

    with pytest.raises(
        LoadError,
        match=exactly(f"{path} has format 2, newer than this purestate reads (1)"),
    ):
        ps.load(path)


def test_what_a_later_version_may_add_is_ignored(path):
    def change(header, manifest):
        manifest["new"] = manifest["root"]["new"] = 1
        manifest["root"]["data"]["w"]["new"] = [1]

    forge(path, change)

    assert train() == ps.load(path, Train)


def test_a_file_that_is_not_there_is_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        ps.load(tmp_path / "nothing.safetensors", Train)


# --- forged files, whose checksums are right ----------------------------------------------


def node(manifest, *names):
    found = manifest["root"]
    for name in names:
        found = found["data"][name]
    return found


FORGED = {
    "a huge shape": lambda h, m: h["w"].update(shape=[2**70, 2**70]),
    "a huge shape in both": lambda h, m: (
        h["w"].update(shape=[2**62]),
        node(m, "w").update(shape=[2**62]),
    ),
    "a negative shape": lambda h, m: h["w"].update(shape=[-2, -3]),
    "a shape of texts": lambda h, m: h["w"].update(shape=["2", "3"]),
    "another shape in the manifest": lambda h, m: node(m, "w").update(shape=[3, 2]),
    "a negative shape in the manifest": lambda h, m: node(m, "w").update(shape=[-6]),
    "a shape that is a number": lambda h, m: node(m, "w").update(shape=6),
    "offsets outside": lambda h, m: h["w"].update(data_offsets=[10**6, 10**6 + 24]),
    "offsets that overlap": lambda h, m: h["w"].update(data_offsets=[0, 24]),
    "offsets the other way": lambda h, m: h["w"].update(data_offsets=[24, 0]),
    "an unknown dtype": lambda h, m: h["w"].update(dtype="F7"),
    "an object dtype": lambda h, m: node(m, "w").update(dtype="object"),
    "a dtype of fields": lambda h, m: node(m, "w").update(dtype="f4,f4"),
    "another dtype in the manifest": lambda h, m: node(m, "w").update(dtype="int32"),
    "an array that is not there": lambda h, m: node(m, "w").update(array="v"),
    "the header as an array": lambda h, m: node(m, "w").update(array="__metadata__"),
    "an unknown node": lambda h, m: m["root"]["data"].update(w={"pickle": "x"}),
    "a node that is a list": lambda h, m: m["root"]["data"].update(w=[1]),
    "an unknown kind": lambda h, m: node(m, "w").update(kind="object"),
    "an unknown impl": lambda h, m: node(m, "key").update(impl="os"),
    "no root": lambda h, m: m.pop("root"),
    "a root that is None": lambda h, m: m.update(root=None),
    "a format that is a text": lambda h, m: m.update(purestate="1"),
    "static values of a list": lambda h, m: m["root"].update(static=[1]),
    "a static list": lambda h, m: m["root"]["static"].update(width=[1]),
    "an unknown static value": lambda h, m: m["root"]["static"].update(
        width={"eval": "1"}
    ),
    "a static value with two tags": lambda h, m: m["root"]["static"].update(
        width={"tuple": [], "bytes": ""}
    ),
    "a dtype as a static value": lambda h, m: m["root"]["static"].update(
        width={"jnp_dtype": "load"}
    ),
    "a function as a static value": lambda h, m: m["root"]["static"].update(
        width={"named": "os:system"}
    ),
    "a call as a static value": lambda h, m: m["root"]["static"].update(
        width={"partial": [{"named": "os:system"}, ["true"], {}]}
    ),
    "a process as an enum": lambda h, m: m["root"]["static"].update(
        width={"enum": ["subprocess:Popen", "true"]}
    ),
    "a process as a dataclass": lambda h, m: m["root"]["static"].update(
        width={"dataclass": ["subprocess:Popen", {"args": "true"}]}
    ),
    "a process as a named tuple": lambda h, m: m["root"]["data"].update(
        w={"namedtuple": "subprocess:Popen", "fields": {"args": {"value": "true"}}}
    ),
    "a module as a named tuple": lambda h, m: m["root"]["data"].update(
        w={"namedtuple": "antigravity:x", "fields": {}}
    ),
    "a process as a State": lambda h, m: m["root"]["data"].update(
        w={
            "state": "Popen",
            "module": "subprocess",
            "version": 0,
            "static": {},
            "data": {"args": {"value": "true"}},
        }
    ),
    "a process as another class": lambda h, m: m["root"]["data"].update(
        w={"tree": "subprocess:Popen", "children": [[".args", {"value": "true"}]]}
    ),
    "a version that is a text": lambda h, m: m["root"].update(version="9"),
    "too few checksums": lambda h, m: h.update(x=h["w"]),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("kind", ["class", "instance"])
def test_a_forged_file_is_refused_and_nothing_is_called(
    path, monkeypatch, change, kind
):
    import subprocess

    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("called"))
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *_: pytest.fail("called"))
    forge(path, change)

    with pytest.raises(LoadError):
        ps.load(path, Train if kind == "class" else train())


@pytest.mark.parametrize("depth", [900, 100_000])
def test_a_forged_file_that_is_nested_deep_is_refused(path, depth):
    def nest(text):
        return text.replace('"here"', '{"list":[' * depth + '{"none":1}' + "]}" * depth)

    forge(path, lambda h, m: m["root"]["data"].update(w="here"), nest)

    for like in (Train, train()):
        with pytest.raises(LoadError):
            ps.load(path, like)


def test_a_tree_that_is_too_deep_to_walk_through_says_so():
    arrays, manifest = ps.to_dict(train())
    node = {"none": True}
    for _ in range(400):
        node = {"list": [node]}
    manifest["root"]["data"]["w"] = node

    with pytest.raises(LoadError, match="is nested deeper than Python goes"):
        ps.from_dict(manifest, Train, arrays)


def test_a_dict_in_the_place_of_a_header_is_refused(path):
    for text in ("[]", "1", "null", '"a"', "[" * 5000, '{"a":' * 3000):
        path.write_bytes(struct.pack("<Q", len(text)) + text.encode())

        with pytest.raises(LoadError):
            ps.load(path)


# --- reading ----------------------------------------------------------------------------


def test_a_part_reads_no_more_than_itself(path, monkeypatch):
    reads = []
    read = File.bytes_at

    def counting(self, begin, size):
        reads.append(size)
        return read(self, begin, size)

    found = ps.load(path)
    monkeypatch.setattr(File, "bytes_at", counting)

    assert train().opt == ps.load(found["opt"], Opt)
    assert [24, 2] == reads


def test_a_file_that_is_replaced_is_read_as_it_was(path):
    found = ps.load(path)
    ps.save(path, train().replace(w=jnp.zeros((2, 3))))

    np.testing.assert_array_equal(train().w, found["w"])


def test_arrays_of_all_sizes_come_back(tmp_path):
    path = tmp_path / "t.safetensors"
    sizes = (0, 1, 2**16, 3 * 2**16 + 1, 2**18, 2**18 - 4, 3 * 2**20 + 5, 5 * 2**20)
    before = [np.random.default_rng(size).bytes(size) for size in sizes]
    before = [np.frombuffer(data, np.uint8).copy() for data in before * 3]

    ps.save(path, before)
    after = ps.load(path, [jnp.asarray(array) for array in before])

    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_file_is_closed_when_nothing_needs_it(path):
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        pytest.skip("this system does not list open files")

    def is_open():
        links = [os.path.join(folder, name) for name in os.listdir(folder)]
        return str(path) in [os.readlink(f) for f in links if os.path.lexists(f)]

    found = ps.load(path)
    assert is_open()
    del found
    assert not is_open()
    ps.load(path, Train)
    assert not is_open()


def test_a_copy_of_what_was_saved_still_reads(path):
    found = copy.copy(ps.load(path))

    np.testing.assert_array_equal(train().w, found["w"])


def test_a_file_that_is_cut_off_while_it_is_open_is_found(path):
    found = ps.load(path)
    os.truncate(path, path.stat().st_size - 40)

    with pytest.raises(
        CorruptFileError, match=exactly(f"{path} was cut off while it was read")
    ):
        np.asarray(found["w"])


def test_a_file_is_written_and_read_while_the_interpreter_ends(tmp_path):
    path = str(tmp_path / "t.safetensors")
    done = python(
        f"""
        import atexit
        import numpy as np
        import purestate as ps

        def end():
            ps.save({path!r}, [np.ones(1 << 20)])
            assert ps.load({path!r}, [np.ones(1 << 20)])[0].sum() == 1 << 20
            print("saved")

        atexit.register(end)
        """
    )

    assert "saved" in done.stdout, done.stderr
