"""The commands as access rules name them: numbers, categories, subcommands.

Everything comes from the command table. A read command that writes with one of its options
(`writes_with`: TREAD with GROUP) has a second entry, ``tread|group``, in the category write and not
in read, so that ``+@read`` does not allow what changes data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.commands.table.registry import COMMANDS, Command, registered_count


class CatalogEntry:
    """A command, or a subcommand as ``container|sub``. `number` never changes while the process
    runs."""

    def __init__(self, name: str, number: int, categories: frozenset[str]) -> None:
        self.name = name
        self.number = number
        self.categories = categories
        self.children: list[CatalogEntry] = []
        self.is_child = False
        # The children of a container are its subcommands, so it has no rules for first arguments.
        # The child of another command is its form with an option that writes.
        self.is_container = False

    def with_children(self) -> Iterator[CatalogEntry]:
        yield self
        yield from self.children

    def with_subcommands(self) -> Iterator[CatalogEntry]:
        """The entries that a rule for a category of this entry covers: as in Redis all subcommands,
        but not the form that writes, which has categories of its own."""
        yield self
        if self.is_container:
            yield from self.children


class Catalog:
    """Entries by name. A command that is registered later is added at the next look-up."""

    def __init__(self) -> None:
        self._entries: dict[str, CatalogEntry] = {}
        self._known = 0

    def entries(self) -> dict[str, CatalogEntry]:
        known = registered_count()
        if known != self._known:
            self._known = known
            for row in COMMANDS.values():
                self._add(row)
        return self._entries

    def _add(self, row: Command) -> None:
        entry = self._entry(row.name, row.categories)
        entry.is_container = bool(row.subcommands)
        for sub in row.subcommands.values():
            self._child(entry, sub.name, sub.categories)
        if row.writes_with is not None:
            name = f"{row.name}|{row.writes_with.decode().lower()}"
            self._child(entry, name, {*row.categories, "write"} - {"read"})

    def _entry(self, name: str, found: Iterable[str]) -> CatalogEntry:
        if name not in self._entries:
            self._entries[name] = CatalogEntry(name, len(self._entries), frozenset(found))
        return self._entries[name]

    def _child(self, parent: CatalogEntry, name: str, found: Iterable[str]) -> None:
        if name not in self._entries:
            child = self._entry(name, found)
            child.is_child = True
            parent.children.append(child)


_CATALOG = Catalog()


def all_entries() -> dict[str, CatalogEntry]:
    """Every entry by its name, containers before their subcommands."""
    return _CATALOG.entries()


def find_entry(name: str) -> CatalogEntry | None:
    """The entry of a name in any case."""
    return all_entries().get(name.lower())


def in_category(category: str) -> list[CatalogEntry]:
    return [entry for entry in all_entries().values() if category in entry.categories]
