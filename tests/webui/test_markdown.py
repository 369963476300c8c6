"""How lists and code in answers look, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import ask, note
from .stand_in import StandIn

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]

ANSWER = """Text.

- one
  - two
    1. three
       - four

- [x] done
- [ ] open

  more of it

```python
long = "a line that is so long that it would pass under the button at the end of it, were there no room for that"
```

```
plain
```

```c++
int x;
```
"""


@pytest.fixture(scope="module")
def page(chromium: Any, pages: Any) -> Iterator[Any]:
    """A narrow page, which shows the answer."""
    server = StandIn({"words": ["text"]}, {"Show": ANSWER})
    shown = chromium.new_page(viewport={"width": 390, "height": 844})
    shown.goto(pages.url(server.url))
    shown.wait_for_selector("#lsv-status .ready")
    ask(shown, "Show")
    note(shown)
    shown.wait_for_selector("#lsv-chat .code_wrap >> nth=2")
    yield shown
    shown.close()
    server.stop()


def style(page: Any, selector: str, name: str) -> list[str]:
    read = "(all, name) => all.map(one => getComputedStyle(one)[name])"
    return list(page.locator(f"#lsv-chat .bot.message {selector}").evaluate_all(read, name))


def test_nested_lists_have_the_size_of_the_text(page) -> None:
    assert len(style(page, "li", "fontSize")) == 6
    assert set(style(page, "li", "fontSize")) == {style(page, "p", "fontSize")[0]}


def test_a_check_box_has_no_bullet(page) -> None:
    assert style(page, "li", "listStyleType") == ["disc", "circle", "decimal", "circle", "none", "none"]


def test_code_shows_its_language_above_it(page) -> None:
    read = "all => all.map(one => getComputedStyle(one, '::before').content)"
    shown = page.locator("#lsv-chat .code_wrap").evaluate_all(read)
    assert shown == ['"python"', '""', '"c++"']


def test_the_button_that_copies_code_is_inside_of_the_frame_and_above_the_code(page) -> None:
    for block in page.locator("#lsv-chat .code_wrap").all():
        frame, button, code = (one.bounding_box() for one in (block, block.locator("button"), block.locator("pre")))
        assert frame["x"] < button["x"]
        assert button["x"] + button["width"] < frame["x"] + frame["width"]
        assert frame["y"] < button["y"]
        assert button["y"] + button["height"] < code["y"]
