"""The bar that shows how far a batch of prompts is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

from lsv.request.outputs import RequestOutput
from lsv_offline.llm_engine import Output

Progress: TypeAlias = "bool | Callable[..., Any]"
"""Whether a bar is shown on stderr, or what makes one, such as ``tqdm``."""


@contextmanager
def progress_bar(total: int, shown: Progress) -> Iterator[Any]:
    """Gives a function that takes each finished output and moves the bar."""
    if not shown or not total:
        yield lambda output: None
        return
    if callable(shown):
        with closing(shown(total=total, desc="Processed prompts", dynamic_ncols=True)) as given:
            yield lambda output: given.update(1)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("Processed prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[rate]}"))  # fmt: skip
    tokens = 0
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, rate="")

        def advance(output: Output) -> None:
            nonlocal tokens
            if isinstance(output, RequestOutput):
                tokens += sum(len(answer.token_ids) for answer in output.outputs)
            seconds = bar.tasks[task].elapsed or 0.0
            bar.update(task, advance=1, rate=f"{tokens / seconds:.1f} tok/s" if seconds and tokens else "")

        yield advance
