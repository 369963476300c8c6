"""Tables that commands write into the documents."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def write_part(document: str, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` in a file of docs/.

    Raises ``ValueError`` unless the document has both once.
    """
    file, begin, end = DOCS / document, f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before = file.read_text(encoding="utf-8")
    after, count = re.subn(f"{begin}.*{end}", lambda _: f"{begin}{text}\n{end}", before, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{file} must have {begin.strip()} and {end} once")
    file.write_text(after, encoding="utf-8")
