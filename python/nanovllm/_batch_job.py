"""What a batch job on many machines reads and writes: its input in parts, and its output with the list of finished parts."""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nanovllm._batch_engine import named

_BLANKS = b" \t\r\n"  # what a line without a request has, for run-batch too

# pyarrow comes with ray[data] and is imported where it is used.


class BatchError(RuntimeError):
    """What ends a job, as a sentence for its user."""

    status = 1  # of the command


class UsageError(BatchError):
    """What was asked for can't be."""

    status = 2


@dataclass(frozen=True)
class Part:
    """Neighbouring requests, which are answered and written together."""

    number: int  # in the job, from 0
    place: int  # of the first request in the input, from 0
    count: int  # of requests
    offset: int  # of its first byte in the file, or of its first row in the row group
    size: int  # in bytes, or 0 for rows


@dataclass
class Piece:
    """Parts of one file that are read by one task."""

    path: str
    group: int | None  # of rows, in Parquet
    parts: list[Part] = field(default_factory=list)


def open_input(path: str) -> tuple[Any, str]:
    """The file system and the path there: of this machine, or as pyarrow.fs.FileSystem.from_uri has them."""
    from pyarrow import fs

    return fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)


def _files(path: str) -> list[str]:
    from pyarrow import fs

    system, inner = open_input(path)
    (info,) = system.get_file_info([inner])
    if info.type == fs.FileType.File:
        return [path]
    if info.type == fs.FileType.Directory:
        names = sorted(file.base_name for file in system.get_file_info(fs.FileSelector(inner)) if file.type == fs.FileType.File)
        wanted = [name for name in names if name.endswith((".jsonl", ".parquet"))]
        if wanted:
            return [f"{path.rstrip('/')}/{name}" for name in wanted]
        raise BatchError(f"{path} has no file whose name ends in .jsonl or .parquet")
    raise BatchError(f"{path} can't be opened: there is no such file or folder")


class Plan:
    """How the input is cut into parts, which depends on nothing but the input and part_size; and its hash."""

    def __init__(self, path: str, part_size: int) -> None:
        self.pieces: list[Piece] = []
        self.num_requests = 0
        self.num_parts = 0
        self.ignored: set[str] = set()  # columns
        self._part_size = part_size
        digest = hashlib.blake2b(digest_size=16)
        for file in _files(path if "://" in path else os.path.abspath(path)):  # tasks run in another folder
            if file.endswith(".parquet"):
                self._add_rows(file, digest)
            else:
                self._add_lines(file, digest)
        self.digest = digest.hexdigest()

    def _add(self, piece: Piece, count: int, offset: int, size: int) -> None:
        piece.parts.append(Part(self.num_parts, self.num_requests, count, offset, size))
        self.num_parts += 1
        self.num_requests += count

    def _add_lines(self, path: str, digest: Any) -> None:
        system, inner = open_input(path)
        parts = Piece(path, None)
        start = end = count = 0
        with io.BufferedReader(system.open_input_file(inner), 1 << 20) as file:
            for line in file:
                digest.update(line)
                end += len(line)
                count += bool(line.strip(_BLANKS))
                if count == self._part_size:
                    self._add(parts, count, start, end - start)
                    start, count = end, 0
        if count:
            self._add(parts, count, start, end - start)
        # So many parts a task: few tasks for the driver, each soon done again.
        for first in range(0, len(parts.parts), 16):
            self.pieces.append(Piece(path, None, parts.parts[first : first + 16]))

    def _add_rows(self, path: str, digest: Any) -> None:
        from pyarrow import parquet

        system, inner = open_input(path)
        with system.open_input_file(inner) as file:
            while block := file.read(1 << 20):
                digest.update(block)
            metadata = parquet.read_metadata(file)
        names = metadata.schema.to_arrow_schema().names
        if not {"body", "messages", "prompt"}.intersection(names):
            raise BatchError(f"{path} must have a column body, messages or prompt, it has {', '.join(names)}")
        if {"messages", "prompt"}.issubset(names):
            raise BatchError(f"{path} must have one of the columns messages and prompt, it has both")
        self.ignored.update(name for name in names if name not in _COLUMNS)
        for group in range(metadata.num_row_groups):
            piece = Piece(path, group)
            rows = metadata.row_group(group).num_rows
            for start in range(0, rows, self._part_size):
                self._add(piece, min(self._part_size, rows - start), start, 0)
            self.pieces.append(piece)

    def without(self, finished: Container[int]) -> list[Piece]:
        """What is left to do."""
        left = (Piece(piece.path, piece.group, [part for part in piece.parts if part.number not in finished]) for piece in self.pieces)
        return [piece for piece in left if piece.parts]


def read_piece(piece: Piece, body: Mapping[str, Any]) -> Iterator[tuple[Part, list[bytes]]]:
    """Request lines, part by part."""
    if piece.group is not None:
        yield from _read_rows(piece, body)
        return
    system, inner = open_input(piece.path)
    with system.open_input_file(inner) as file:
        for part in piece.parts:
            file.seek(part.offset)
            lines = [line for line in file.read(part.size).split(b"\n") if line.strip(_BLANKS)]
            if len(lines) != part.count:
                raise BatchError(f"{piece.path} has changed while it was read; start the job anew, with another output")
            yield part, [named(line, part.place + index) for index, line in enumerate(lines)]


def _read_rows(piece: Piece, body: Mapping[str, Any]) -> Iterator[tuple[Part, list[bytes]]]:
    from pyarrow import parquet

    system, inner = open_input(piece.path)
    with system.open_input_file(inner) as file:
        table = parquet.ParquetFile(file)
        rows = table.read_row_group(piece.group, columns=[name for name in _COLUMNS if name in table.schema_arrow.names])
        for part in piece.parts:
            try:
                taken = rows.slice(part.offset, part.count).to_pylist()
                yield part, [_request(row, part.place + index, body) for index, row in enumerate(taken)]
            except ValueError as error:
                last = part.place + part.count - 1
                raise BatchError(f"{piece.path} has among requests {part.place} to {last} a value that is neither a text nor JSON: {error}") from None


_COLUMNS = ["custom_id", "url", "body", "messages", "prompt"]


def _request(row: Mapping[str, Any], place: int, body: Mapping[str, Any]) -> bytes:
    """The line of a row. What is wrong with it, the engine says."""
    name = place if row.get("custom_id") is None else row["custom_id"]
    own, messages, prompt, url = (_plain(row.get(column)) for column in ("body", "messages", "prompt", "url"))
    own = _parsed(own)
    asked: Any = {**body, **own} if isinstance(own, dict) else dict(body) if own is None else own
    if isinstance(asked, dict):
        if messages is not None:
            asked["messages"] = _parsed(messages)
        if prompt is not None:
            asked["prompt"] = prompt
        if "prompt" in row and "messages" not in asked or "prompt" in asked:
            url = url or "/v1/completions"
    custom_id = name.decode() if isinstance(name, bytes) else str(name)
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url or "/v1/chat/completions", "body": asked}).encode()


def _plain(value: Any) -> Any:
    """As JSON has it. Parquet has texts as bytes where their writer did not say that they are texts, and null where a field of a
    structure is missing."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):  # a map
        value = dict(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ValueError(f"{value} is a {type(value).__name__}")


def _parsed(value: Any) -> Any:
    """JSON that is there as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


class Output:
    """OUTPUT, a file of JSON lines or a folder of Parquet, and OUTPUT.job: what the job is, then a line for each
    part that is whole in OUTPUT. What OUTPUT has beyond these is cut or written over."""

    def __init__(self, path: str, identity: Mapping[str, Any]) -> None:
        if not path.endswith((".jsonl", ".parquet")):
            raise UsageError(f"{path} must end in .jsonl, for a file of lines, or in .parquet, for a folder of parts")
        self.path = path
        self.finished: set[int] = set()  # parts
        self.num_answers = self.num_errors = 0
        self._end = 0  # in bytes, of what is whole
        self._is_folder = path.endswith(".parquet")
        self._job = f"{path}.job"
        with contextlib.ExitStack() as files:
            self._journal = files.enter_context(open(self._job, "ab+", buffering=0))
            try:
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BatchError(f"{path} is being written by another run") from None
            self._go_on(identity)
            if self._is_folder:
                os.makedirs(path, exist_ok=True)
            else:
                self._file = files.enter_context(open(path, "ab", buffering=0))
                self._file.truncate(self._end)
            self._files = files.pop_all()

    def _go_on(self, identity: Mapping[str, Any]) -> None:
        self._journal.seek(0)
        lines = self._journal.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # half a line is no entry
        size = os.path.getsize(self.path) if os.path.isfile(self.path) else 0
        has_content = size > 0 or os.path.isdir(self.path) and len(os.listdir(self.path)) > 0
        if not lines:
            if has_content:
                os.unlink(self._job)
                raise BatchError(f"{self.path} is there, and {self._job} is not: it is the output of something else; name another or "
                                 "take it away")
            self._journal.truncate(0)
            self._note(identity)
            return
        try:
            job, *entries = map(json.loads, lines)
            if job.keys() != identity.keys():
                raise ValueError
            changed = [name for name, value in identity.items() if job[name] != value]
            kept = len(lines[0])
            for line, entry in zip(lines[1:], entries):
                # Where a file is shorter than it was, what is written anew must not make lost parts look whole.
                if not self._is_folder and entry["end"] > size:
                    break
                if not self._is_folder or os.path.exists(self._part(entry["part"])):
                    self._finish(entry)
                kept += len(line)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise BatchError(f"{self._job} is no list of parts of {self.path}; take it away, and {self.path} too") from None
        if changed and (entries or has_content):
            raise BatchError(f"{self.path} is the output of another job (not the same {' and '.join(changed)}); name another output, "
                             f"or take it and {self._job} away")
        self._journal.truncate(0 if changed else kept)
        if changed:  # such a job ended before it had an answer
            self._note(identity)

    def _note(self, entry: Mapping[str, Any]) -> None:
        _write(self._journal, json.dumps(entry).encode() + b"\n")

    def _finish(self, entry: Mapping[str, int]) -> None:
        if entry["part"] in self.finished:
            return
        self.finished.add(entry["part"])
        self.num_answers += entry["answers"]
        self.num_errors += entry["errors"]
        self._end = entry.get("end", 0)

    def _part(self, number: int) -> str:
        return os.path.join(self.path, f"part-{number:06}.parquet")

    def write(self, number: int, answers: bytes) -> None:
        """A part's answers, once: those of a part that was done again are the same."""
        if number in self.finished:
            return
        entry = {"part": number, "answers": answers.count(b"\n"), "errors": answers.count(b"\n") - answers.count(b',"error":null}\n')}
        if self._is_folder:
            self._write_rows(number, answers)
        else:
            _write(self._file, answers)
            entry["end"] = self._end + len(answers)
        self._note(entry)
        self._finish(entry)

    def _write_rows(self, number: int, answers: bytes) -> None:
        import pyarrow
        from pyarrow import parquet

        rows = []
        for answer in map(json.loads, answers.splitlines()):
            response = answer["response"] or {"status_code": None, "body": None}
            body, error = (None if value is None else json.dumps(value, ensure_ascii=False) for value in (response["body"], answer["error"]))
            rows.append({"id": answer["id"], "custom_id": answer["custom_id"], "status_code": response["status_code"], "body": body,
                         "error": error})
        text = pyarrow.string()
        schema = pyarrow.schema({"id": text, "custom_id": text, "status_code": pyarrow.int32(), "body": text, "error": text})
        unfinished = self._part(number) + ".unfinished"
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema), unfinished)
        os.replace(unfinished, self._part(number))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *ignored: object) -> None:
        self._files.close()


def _write(file: io.FileIO, data: bytes) -> None:
    """All of it, for a file without a buffer may take less where a disk gets full."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
