"""Labelled text from a file, and files that are written whole or not at all."""

import gzip
import os
import threading
import zlib
from pathlib import Path


class DataError(ValueError):
    """A file does not hold what it should; the message is one line that begins with the file's name."""


def read_tsv(path):
    """The `(label, text)` pairs of a file with one `label<TAB>text` a line, both as strings.

    The file is UTF-8, plain or gzipped, with or without a byte order mark, with any line ends; blank lines are
    passed over, and white space around label and text is dropped. Nothing is unquoted: a quotation mark is a
    part of the text.

    DataError, naming the file and the line: no tab or more than one, no label, no text, not UTF-8; naming the
    file: it cannot be read, or has no rows.
    """
    rows = []
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            line = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
        if not line.strip():
            continue
        label, *texts = (column.strip() for column in line.split("\t"))
        if len(texts) != 1:
            raise DataError(f"{where}: {len(texts)} tabs, where label<TAB>text has one: {line[:40]!r}")
        if not label or not texts[0]:
            raise DataError(f"{where}: no {'text' if label else 'label'} in {line[:40]!r}")
        rows.append((label, texts[0]))
    if not rows:
        raise DataError(f"{path}: no rows")
    return rows


def _lines(path):
    """The lines of a file as bytes, unzipped if need be; they are decoded one by one, to tell where one fails."""
    try:
        data = Path(path).read_bytes()
        if data.startswith(b"\x1f\x8b"):  # gzip's own mark: the name may say anything
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def write_atomically(path, data):
    """Put the bytes `data` in the file `path` so that, whenever the machine stops, it is the old one or the new one.

    They are written beside it, forced to disk and renamed into place. A process that is killed meanwhile leaves a file
    `.NAME.*.tmp`, which nobody reads.
    """
    path = Path(path).resolve()  # a link stays a link
    part = beside(path)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if os.name == "posix":  # the new name is safe only when the folder is on disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def beside(path):
    """Where write_atomically writes before the path is replaced: a name that no other thread or process takes."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
