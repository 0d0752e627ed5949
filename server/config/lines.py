"""Sources of directives: configuration files, the files that they include, and command
lines. Every line keeps its place, so that an error can name it."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.errors import StartError
from millstream.quoted_words import split_words

COMMAND_LINE = "command line"
INCLUDES_MAX = 16  # files, one included by the other


class Source(NamedTuple):
    """A file of directives, or a pattern of an include with the files that it matches, as it was
    read: a file that an editor writes, or that a full disk has cut, has less than before."""

    has_content: bool
    ends_with_line_break: bool = False


Sources = dict[str, Source]


class Line(NamedTuple):
    """A directive as it was written: where, its name, its words."""

    where: str
    name: str
    words: list[str]

    @property
    def is_in_a_file(self) -> bool:
        return self.where != COMMAND_LINE

    @property
    def file(self) -> str:
        """The file that has the line."""
        return self.where.rpartition(", line ")[0]


def words_of(line: bytes) -> list[str]:
    """A line's words as texts; ``\\xHH`` in quotes is a byte of their UTF-8. ValueError for quotes
    that do not fit."""
    return [word.decode("utf-8", "surrogateescape") for word in split_words(line)]


def read_file(path: Path, sources: Sources | None = None) -> list[Line]:
    """The directives of a redis.conf-style file and of the files that it includes, in order;
    StartError names file and line. The files are noted in `sources`."""
    noted: Sources = {} if sources is None else sources
    return list(_with_includes(_lines_of(path, noted), [path.resolve()], noted))


def check_whole(now: Sources, before: Sources) -> None:
    """StartError if a file is empty, or its last line has no line break, and was not so before."""
    from glob import has_magic

    for name, source in now.items():
        earlier = before.get(name, source)
        if earlier.has_content and not source.has_content:
            raise StartError(f"{name} {'matches no file' if has_magic(name) else 'is empty'}")
        is_cut = source.has_content and not source.ends_with_line_break
        if earlier.ends_with_line_break and is_cut:
            raise StartError(
                f"the last line of {name} has no line break, as if the file was cut: add one"
            )


def _lines_of(path: Path, sources: Sources, included_by: str = "") -> Iterator[Line]:
    try:
        data = path.read_bytes().removeprefix(BOM_UTF8)
        data.decode("utf-8")
    except OSError as problem:
        raise StartError(f"{included_by}cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        number = data[: problem.start].count(b"\n") + 1
        raise StartError(f"{path}, line {number}: this is not UTF-8 text") from None
    has_content = any(line.strip()[:1] not in (b"", b"#") for line in data.split(b"\n"))
    sources[str(path)] = Source(has_content, data.endswith(b"\n"))
    for number, line in enumerate(data.split(b"\n"), start=1):
        where = f"{path}, line {number}"
        if line.strip() and not line.strip().startswith(b"#"):
            if b"\0" in line:
                raise StartError(
                    f"{where}: the line has the control character \\x00 (NUL): remove it"
                )
            try:
                words = words_of(line)
            except ValueError as problem:
                raise StartError(f"{where}: {problem}") from None
            if words:
                yield Line(where, words[0].lower(), words[1:])


def _with_includes(
    lines: Iterable[Line], including: list[Path], sources: Sources
) -> Iterator[Line]:
    """The lines, with those of a file in place of the line that includes it. `including` are the
    files that are being read."""
    for line in lines:
        if line.name != "include":
            yield line
            continue
        for path in _included(line, sources):
            inner = [*including, path.resolve()]
            if inner[-1] in including:
                raise StartError(f"{line.where}: include: {path} includes itself")
            if len(inner) > INCLUDES_MAX:
                raise StartError(f"{line.where}: include: more than {INCLUDES_MAX} files deep")
            included = _lines_of(path, sources, f"{line.where}: include: ")
            yield from _with_includes(included, inner, sources)


def _included(line: Line, sources: Sources) -> list[Path]:
    """The files that a line includes, as in Redis: relative to the working directory; a pattern
    stands for every file that it matches, in alphabetical order, and may match none."""
    from glob import glob, has_magic

    if len(line.words) != 1:
        raise StartError(f"{line.where}: include: takes {'one' if line.words else 'a'} value")
    (name,) = line.words
    if not has_magic(name):
        return [Path(name)]
    found = [Path(path) for path in sorted(glob(name))]
    sources[name] = Source(bool(found))
    return found


def read_arguments(arguments: Sequence[str], sources: Sources | None = None) -> list[Line]:
    """``--directive value ...`` as in redis-server (``--directive=value`` too). The files that they
    include are noted in `sources`."""
    lines: list[Line] = []
    for argument in arguments:
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            lines.append(Line(COMMAND_LINE, name.lower(), [value] if equals else []))
        elif lines:
            lines[-1].words.append(argument)
        else:
            raise StartError(f"{COMMAND_LINE}: {argument!r} does not belong to a directive")
    return list(_with_includes(lines, [], {} if sources is None else sources))
