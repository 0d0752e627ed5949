"""Recorded conversations with a real Redis: commands, each with its reply, one element a line."""

from __future__ import annotations

from pathlib import Path

from .resp import Double, Error, Map, Null, Push, Reply, Set, Simple


def read_recording(path: Path) -> list[tuple[str, str]]:
    """The commands of a recording, each with its reply's lines."""
    pairs: list[tuple[str, list[str]]] = []
    for line in path.read_text().splitlines():
        if line.startswith("> "):
            pairs.append((line[2:], []))
        elif not line.startswith("#"):
            pairs[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in pairs]


def in_recorded_form(reply: Reply, depth: int = 0) -> str:
    """A reply as the recordings write it: one element a line, the RESP type in front."""
    indent = "  " * depth
    if isinstance(reply, bytes):
        return indent + "$" + repr(reply.decode("utf-8", "replace"))
    if isinstance(reply, bool):
        return indent + ("#t" if reply else "#f")
    if isinstance(reply, int):
        return f"{indent}:{reply}"
    if isinstance(reply, Null):
        return indent + reply.value
    if isinstance(reply, Simple | Error | Double):
        return indent + {Simple: "+", Error: "-", Double: ","}[type(reply)] + reply.text
    if isinstance(reply, Map):
        head, items = f"%{len(reply.pairs)}", [item for pair in reply.pairs for item in pair]
    elif isinstance(reply, Set | Push):
        head, items = f"{'~' if isinstance(reply, Set) else '>'}{len(reply.items)}", reply.items
    else:
        assert isinstance(reply, list), reply
        head, items = f"*{len(reply)}", reply
    return "\n".join([indent + head, *(in_recorded_form(item, depth + 1) for item in items)])
