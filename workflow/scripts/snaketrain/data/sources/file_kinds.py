"""What a text file really is, by its first bytes: read by the wrong settings, it would give other rows than it has."""

import codecs

from snaketrain.data.sources.data_issues import BadData

LOOKED_AT = 4096  # bytes
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
BINARY = {
    b"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: let its name end in .zst",
    b"\xfd7zXZ": "compressed by xz: decompress it",
    b"BZh": "compressed by bzip2: decompress it",
    b"PAR1": "Parquet: let its name end in .parquet, or set `data.format: parquet`",
    b"PK\x03\x04": "a zip archive or a spreadsheet: export it as CSV",
    b"\xd0\xcf\x11\xe0": "a spreadsheet: export it as CSV",
    b"SQLite format 3": "an SQLite database: export a table as CSV",
    b"ARROW1": "Arrow: write it as Parquet",
}


def refuse_other_kinds(head: bytes, kind: str, encoding: str, name: str) -> None:
    """`head`: the first bytes, decompressed; `kind`: the format that they are to be read as."""
    head = head[:LOOKED_AT]
    is_text = b"\0" not in head and _is_utf8(head)
    if found := next((found for mark, found in BINARY.items() if head.startswith(mark) and not is_text), None):
        raise BadData(f"{name}: this is no text, but {found}.")
    of_units = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    if not of_units and (found := _utf16_or_32(head)):
        raise BadData(f"{name}: this is {found.upper()}, not {encoding}. Set `data.encoding: {found}`, or write the file as UTF-8.")
    if is_text and (of_units or not (head.isascii() or codecs.lookup(encoding).name.startswith("utf"))) and head:
        raise BadData(f"{name}: this is UTF-8, not {encoding}. Set `data.encoding: utf-8`, or write the file as {encoding}.")
    if kind in ("csv", "tsv", "text") and not of_units and b"\r" in head[:-1] and b"\n" not in head:
        raise BadData(f"{name}, line 1: its lines end with a carriage return alone. Convert them, for example by `tr '\\r' '\\n'`.")


def _utf16_or_32(head: bytes) -> str | None:
    """By its mark, or by the zero bytes that each ASCII character has in it."""
    if marked := next((encoding for mark, encoding in MARKS.items() if head.startswith(mark)), None):
        return marked
    if b"\0" * 4 in head:  # a file that was not written completely, or no text
        return None
    zeros = [head[place::4].count(0) for place in range(4)]
    some = max(1, len(head) // 40)
    if zeros[1] + zeros[2] > 2 * some and min(zeros[1], zeros[2]) > some:
        return "utf-32-le" if zeros[3] > zeros[0] else "utf-32-be"
    even, odd = zeros[0] + zeros[2], zeros[1] + zeros[3]
    if max(even, odd) > some and max(even, odd) > 10 * min(even, odd):
        return "utf-16-le" if odd > even else "utf-16-be"
    return None


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True
