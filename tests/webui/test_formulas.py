"""Formulas between single dollars."""

from __future__ import annotations

import pytest

from lsv_webui.chat.maths import MARK, mark_formulas

from .conftest import ask, last_answer, note
from .stand_in import StandIn

pytestmark = pytest.mark.xdist_group("webui")

FORMULAS = (
    "$x$",
    "Sorting takes $n \\log n$ steps.",
    "| $a_1$ | $|b_2|$ |",
    "($x$), $y$; $z$.",
    "$E = mc^2$ and $\\$5 + x$",
    "**$p(x)$**",
    "$2x + 3$",
    "$5 \\text{ apples}$",
)
PROSE = (
    "It costs $5 and $10.",
    "Between $5-$10, or $5/$6",
    "US$5 are A$7",
    "$HOME/$USER and $PATH",
    "It costs $5, and they pay 10$.",
    "a \\$5 and b\\$",
    "$ x $",
    "$x\n$",
    "$$x$$ and $$y$$",
    "`$x$` and ``a ` $x$``",
    "```sh\necho $x$\n```",
    "~~~\n$x$\n\n$y$\n~~~",
    "- a\n  ```\n  $x$\n  ```",
    "```python\nprint('$x$')",  # as it streams in
)
ANSWER = """Sorting takes $n \\log n$ steps, *not* $a_1 b_2$ ones; it costs $5 and $10.

| size | steps |
|---|---|
| $2^3$ | `$x$` |
"""


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_marked(text: str) -> None:
    marked = mark_formulas(text)
    assert marked.count(MARK) >= 2
    assert marked.replace(MARK, "") == text


@pytest.mark.parametrize("text", PROSE)
def test_money_variables_and_code_are_not(text: str) -> None:
    assert mark_formulas(text) == text


def test_two_formulas_are_marked_apart() -> None:
    assert mark_formulas("$a_1 b$, $c$") == f"${MARK}a_1 b{MARK}$, ${MARK}c{MARK}$"


@pytest.mark.slow
def test_formulas_are_drawn_and_copied_as_they_were_written(pages, visit) -> None:
    server = StandIn({"words": ["text"]}, {"Sort": ANSWER})
    page = visit(pages.url(server.url))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Sort")
    note(page)
    page.wait_for_function("document.querySelectorAll('#lsv-chat .katex').length == 3")
    assert last_answer(page).locator("em").all_inner_texts() == ["not"]
    assert "it costs $5 and $10." in last_answer(page).inner_text()
    assert last_answer(page).locator("code").inner_text() == "$x$"
    last_answer(page).hover()
    page.locator("#lsv-chat button:is([aria-label*='opy message'], [title*='opy message']):visible").last.click()
    assert page.evaluate("navigator.clipboard.readText()") == ANSWER.rstrip("\n")
    server.stop()
