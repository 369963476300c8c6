"""The console of commands: tables in a terminal, tab-separated text in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_FRAME = 3
"""Screen columns that a table column takes in addition to its text."""


class TableConsole(Console):
    """Prints tables whole: no word of a cell is cut short, however narrow the terminal is.

    A terminal that is too narrow for a table gets a paragraph for each row. In a pipe a table is a line for its title,
    after ``#``, one for the names of its columns, and one for each row, with a tab between cells; other text is not
    wrapped there. A table without a header is for layout alone and stays as it is.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        table = objects[0] if len(objects) == 1 and isinstance(objects[0], Table) else None
        if table is not None and table.show_header:
            if not self.is_terminal:
                self._print_tabbed(table)
                return
            if not _keep_words(table, self):
                self._print_paragraphs(table)
                return
        elif table is None and not self.is_terminal:
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)

    def read(self, cell: Any) -> Text:
        """A cell or a header of a table as text."""
        return cell if isinstance(cell, Text) else self.render_str(str(cell))

    def _print_tabbed(self, table: Table) -> None:
        if table.title:
            self.file.write(f"# {self._join(table.title)}\n")
        for row in (_headers(table), *_rows(table)):
            self.file.write("\t".join(map(self._join, row)) + "\n")

    def _print_paragraphs(self, table: Table) -> None:
        if table.title:
            super().print(self.read(table.title), style="italic")
        names = list(map(self._join, _headers(table)))
        for row in _rows(table):
            first, *rest = map(self.read, row)
            super().print(first, style="bold", soft_wrap=True)
            for name, text in zip(names[1:], rest, strict=True):
                if text.plain:
                    super().print(Text(f"  {name}: ") + text if name else Text("  ") + text)

    def _join(self, cell: Any) -> str:
        """A cell as one line without tabs."""
        return " ".join(self.read(cell).plain.split())


def _headers(table: Table) -> list[Any]:
    return [column.header for column in table.columns]


def _rows(table: Table) -> Iterator[Sequence[Any]]:
    return zip(*(column.cells for column in table.columns), strict=True)


def _keep_words(table: Table, console: TableConsole) -> bool:
    """Make each column at least as wide as its longest word; False if these do not fit beside one another."""
    columns = ([column.header, *column.cells] for column in table.columns)
    words = [[word for cell in cells for word in console.read(cell).plain.split()] for cells in columns]
    widths = [max(map(cell_len, found), default=0) for found in words]
    for column, width in zip(table.columns, widths, strict=True):
        column.min_width = width
    return 1 + sum(_FRAME + width for width in widths) <= console.width
