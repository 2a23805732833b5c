"""The file: arrays by name and a few texts, whole or not there at all.

A safetensors file [1]: eight bytes with the length of the header, the header, which is
JSON, and the arrays one after the other. Among the texts is a checksum of the header
and of each array. The steps of a write are functions, called by their names here.

[1] https://huggingface.co/docs/safetensors
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import platform
import re
import secrets
import struct
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from purestate._saving.values import number_name
from purestate.errors import CorruptFileError, LoadError

_T = TypeVar("_T")
_BLOCK = 64  # the header ends at a multiple of this
_CRC_AT = len('{"__metadata__":{"crc32":"')
_ALONE = 1 << 18  # bytes from which an array is read by itself
_RUN = 1 << 22  # bytes of smaller neighbours that are read at once
_ON_A_THREAD = 1 << 20  # bytes from which a checksum is worth another thread
# What every reader of safetensors knows. Other dtypes are stored as bytes.
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_SIZES = {"U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
_SIZES |= {"U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4}
_SIZES |= {"U64": 8, "I64": 8, "F64": 8}


def stored_as(dtype: Any, shape: Sequence[int]) -> tuple[str, list[int]]:
    """Return the code of a dtype in a file, and the shape that goes with it."""
    code = _CODES.get(number_name(dtype))
    return (code, [*shape]) if code else ("U8", [*shape, dtype.itemsize])


# --- writing --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outgoing:
    """An array to be written: its type, and a function that returns its numbers."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


def write(path: str, arrays: Iterable[Outgoing], metadata: Mapping[str, str]) -> None:
    """Write a file, or leave the one that is there as it is.

    Args:
        path: of the file; one that exists is replaced.
        arrays: read one after the other, each when its turn has come.
        metadata: texts by name.

    Raises:
        OSError: the file cannot be written.
    """
    # Largest items first: every array begins at a multiple of its item size.
    ordered = sorted(arrays, key=lambda array: -int(array.dtype.itemsize))
    header = header_of(ordered, metadata)
    folder, name = os.path.split(path)
    sweep(folder, re.escape(name))
    temporary = temporary_path(path)
    _writing.add(temporary)
    try:
        with open_temporary(temporary) as file:
            write_header(file, header)
            checksums = [write_array(file, array) for array in ordered]
            write_checksums(file, header, checksums)
            sync(file)
        put_in_place(temporary, path)
    finally:
        remove_temporary(temporary)
        _writing.discard(temporary)
    sync_folder(path)


_writing: set[str] = set()  # temporary files of this process that are in use


def local_path(path: Any, error: Callable[[str], Exception]) -> str:
    """Return a path as text.

    Raises:
        Exception: what `error` makes, for an address on a network.
        TypeError: something that is not a path.
    """
    text = os.fsdecode(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise error(text)
    return text


def header_of(arrays: Sequence[Outgoing], metadata: Mapping[str, str]) -> bytes:
    """Return the header, with zeros for the checksums."""
    texts = {"crc32": "0" * 8 * (1 + len(arrays)), **metadata}
    content: dict[str, Any] = {"__metadata__": texts}
    begin = 0
    for array in arrays:
        code, shape = stored_as(array.dtype, array.shape)
        end = begin + array.nbytes
        content[array.name] = {
            "dtype": code,
            "shape": shape,
            "data_offsets": [begin, end],
        }
        begin = end
    header = json.dumps(content, separators=(",", ":")).encode()
    return header + b" " * (-(8 + len(header)) % _BLOCK)


def temporary_path(path: str) -> str:
    """Return where a file is written until it is whole: in the folder of its path."""
    folder, name = os.path.split(path)
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    return os.path.join(folder, f".{name}.tmp-{platform.node()}-{unique}")


def sweep(folder: str, pattern: str) -> None:
    """Remove what processes of this machine left that died while they wrote.

    Args:
        folder: where the files are.
        pattern: regular expression of the names that they were to get.
    """
    host = re.escape(platform.node())
    own = re.compile(rf"\.(?:{pattern})\.tmp-{host}-(?P<process>\d+)-[0-9a-f]{{8}}")
    with contextlib.suppress(OSError):
        for found in os.listdir(folder or "."):
            match, stray = own.fullmatch(found), os.path.join(folder, found)
            if match is None or stray in _writing:
                continue
            if not _is_alive(int(match["process"])):
                remove_temporary(stray)


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return False  # a process before this one had the same number
    if os.name == "nt":
        return True  # there the question below would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


def open_temporary(temporary: str) -> Any:
    """Return a new file."""
    return open(temporary, "xb", buffering=_RUN)


def write_header(file: Any, header: bytes) -> None:
    """Write the header, after its length."""
    file.write(struct.pack("<Q", len(header)))
    file.write(header)


def write_array(file: Any, array: Outgoing) -> int:
    """Write the numbers of an array, and return their checksum."""
    data = _bytes_of(array.read())
    if data.nbytes < _ON_A_THREAD:
        file.write(data)
        return zlib.crc32(data)
    checksum = _beside(zlib.crc32, data)
    try:
        file.write(data)
    finally:
        result = checksum()  # nothing may hold the numbers after this
    return result


def _beside(work: Callable[[Any], _T], data: Any) -> Callable[[], _T]:
    """Return a function that returns what comes of work done on another thread."""
    done: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((work(data), None))
        except BaseException as error:  # noqa: BLE001  # raised where it is asked for
            done.append((None, error))

    # A thread, and no pool of them: that of concurrent.futures cannot be made any more
    # when an atexit function saves.
    thread = threading.Thread(target=run, name="purestate checksum")
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, and starts no thread
        return functools.partial(work, data)

    def result() -> Any:
        thread.join()
        value, error = done[0]
        if error is not None:
            raise error
        return value

    return result


def _bytes_of(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.byteorder == ">" or sys.byteorder == "big":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def write_checksums(file: Any, header: bytes, checksums: Sequence[int]) -> None:
    """Put the checksums into the header: its own, which covers the others, first."""
    digits = "".join(f"{checksum:08x}" for checksum in checksums).encode()
    at = _CRC_AT + 8
    whole = zlib.crc32(header[:at] + digits + header[at + len(digits) :])
    file.seek(8 + _CRC_AT)
    file.write(f"{whole:08x}".encode() + digits)


def sync(file: Any) -> None:
    """Return when the file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def put_in_place(temporary: str, path: str) -> None:
    """Rename a file that is whole: from now on it is the one at `path`."""
    os.replace(temporary, path)


def remove_temporary(temporary: str) -> None:
    """Remove a file that did not become whole, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def sync_folder(path: str) -> None:
    """Return when the new name is on the disk, where a folder can be asked for that."""
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    except OSError:
        return  # Windows opens no folder
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- reading --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array in a file.

    Attributes:
        name: of the array.
        code: its dtype, as safetensors names it.
        shape: its shape.
        begin: where it begins, counted from the end of the header.
        end: where it ends.
        checksum: of its bytes.
    """

    name: str
    code: str
    shape: tuple[int, ...]
    begin: int
    end: int
    checksum: int


class File:
    """An open file whose header was found whole.

    One descriptor reads all of it: another process may replace the file meanwhile.

    Attributes:
        path: as it was given.
        entries: the arrays by name, in the order in which they lie.
        metadata: texts by name.
    """

    def __init__(self, path: str) -> None:
        """Open a file and check its header.

        Raises:
            CorruptFileError: it is damaged, or cut off, or no such file at all.
            LoadError: another program wrote it.
            OSError: there is no such file.
        """
        self.path = path
        self._lock = threading.Lock()
        self._handle = open(path, "rb", buffering=0)  # noqa: SIM115
        self.close = weakref.finalize(self, self._handle.close)
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        size = os.fstat(self._handle.fileno()).st_size
        if size < 8:
            raise self._damage("is shorter than a header")
        (length,) = struct.unpack("<Q", self.bytes_at(0, 8).tobytes())
        if length > size - 8:
            raise self._damage(
                "ends within its header: it was cut off, or it is no such file"
            )
        header = self.bytes_at(8, length).tobytes()
        try:
            content = json.loads(header)
            if not isinstance(content, dict):
                raise TypeError
        except Exception:  # noqa: BLE001  # no JSON, no text, or nested too deep
            raise self._damage(
                "has a header that is no JSON: it is damaged, or no such file"
            ) from None
        texts = content.pop("__metadata__", None)
        if not isinstance(texts, dict) or "crc32" not in texts:
            raise LoadError.foreign(self.path)
        digits = header[_CRC_AT : _CRC_AT + 8]
        blank = header[:_CRC_AT] + b"0" * 8 + header[_CRC_AT + 8 :]
        if digits != f"{zlib.crc32(blank):08x}".encode():
            raise self._damage("has a damaged header. Use an earlier file")
        with self.describing():
            checksums = texts["crc32"][8:]
            self.metadata: dict[str, str] = texts
            self.entries = _entries(content, checksums)
        self._begin = 8 + length
        there = size - self._begin
        wanted = max((entry.end for entry in self.entries.values()), default=0)
        if there != wanted:
            why = "it was cut off" if there < wanted else "something was added to it"
            raise self._damage(
                f"has {there} bytes of arrays, and should have {wanted}: {why}"
            )

    @contextlib.contextmanager
    def describing(self) -> Iterator[None]:
        """Turn what is raised while a header is understood into one kind of error."""
        try:
            yield
        except LoadError:
            raise
        except Exception as error:  # noqa: BLE001  # as many as there are damages
            raise self._damage(
                f"has a header that does not describe it "
                f"({type(error).__name__}: {error})"
            ) from None

    def _damage(self, problem: str) -> CorruptFileError:
        return CorruptFileError.because(self.path, problem)

    def bytes_at(self, begin: int, size: int) -> Any:
        """Return bytes of the file, in memory that jax copies."""
        made = unaligned(size)
        view = memoryview(made)
        with self._lock:
            self._handle.seek(begin)
            while view:
                count = self._handle.readinto(view)
                if not count:
                    raise self._damage("was cut off while it was read")
                view = view[count:]
        return made

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Yield arrays as bytes, each with its name, in the order in which they lie.

        Raises:
            CorruptFileError: the bytes are not those that were written.
        """
        wanted = sorted((self.entries[n] for n in set(names)), key=lambda e: e.begin)
        waiting: Callable[[], list[tuple[str, Any]]] = list
        for run in _runs(wanted):
            begin, end = run[0].begin, run[-1].end
            data = self.bytes_at(self._begin + begin, end - begin)
            parts = [(e, data[e.begin - begin : e.end - begin]) for e in run]
            # One run is checked while the next one is read.
            if end - begin >= _ON_A_THREAD:
                coming = _beside(self._checked, parts)
            else:
                coming = functools.partial(self._checked, parts)
            del data, parts
            yield from waiting()
            waiting = coming
            del coming
        yield from waiting()

    def _checked(self, parts: list[tuple[Entry, Any]]) -> list[tuple[str, Any]]:
        for entry, data in parts:
            if zlib.crc32(data) != entry.checksum:
                raise self._damage(
                    f"is damaged: the bytes of {entry.name} do not have the checksum "
                    f"that they were saved with. Use an earlier file"
                )
        return [(entry.name, data) for entry, data in parts]


def _entries(content: dict[str, Any], checksums: str) -> dict[str, Entry]:
    """Return the arrays that a header describes, one after the other without gaps."""
    if len(checksums) != 8 * len(content):
        raise ValueError(f"{len(content)} arrays, {len(checksums) // 8} checksums")
    found = {}
    last = 0
    for i, (name, facts) in enumerate(content.items()):
        code, shape = facts["dtype"], facts["shape"]
        begin, end = facts["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
            raise ValueError(f"{name} has the shape {shape} at {begin} to {end}")
        if begin != last or end - begin != math.prod(shape) * _SIZES[code]:
            raise ValueError(f"{name} of {code} and shape {shape} at {begin} to {end}")
        checksum = int(checksums[8 * i : 8 * i + 8], 16)
        found[name] = Entry(name, code, tuple(shape), begin, end, checksum)
        last = end
    return found


def _runs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield arrays that are read at once: a large one, or small neighbours."""
    run: list[Entry] = []
    for entry in entries:
        if run and (
            entry.begin != run[-1].end
            or entry.end - run[0].begin > _RUN
            or max(_length(entry), _length(run[-1])) >= _ALONE
        ):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _length(entry: Entry) -> int:
    return entry.end - entry.begin


def unaligned(size: int) -> Any:
    """Return memory for `size` bytes that jax will copy, and not use as its own.

    On CPU jax takes over what lies at a multiple of 64 bytes. Such an array is never
    donated: the first donated step after a load would need the memory twice.
    """
    whole = np.empty(size + _BLOCK + 16, np.uint8)
    # At 16 bytes after a multiple of 64: aligned for numpy's own dtypes.
    at = (16 - whole.ctypes.data) % _BLOCK
    return whole[at : at + size]
