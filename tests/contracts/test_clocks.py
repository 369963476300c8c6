"""The wall clock, which may jump, is only read for display and storage. Durations use the monotonic clock."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALL = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
}
SHOWN = {
    "core/lsv/text/chat_template.py": "templates write the date",
    "core/lsv/tracing/tracer.py": "spans say when a request ended",
    "plugins/offline/lsv_offline/timeline.py": "a timeline says when something was",
    "core/lsv_base/processes/calls.py": "lines say when a function was called",
    "plugins/runtime/lsv_runtime/worker/profiling/recorder.py": "names of profiles",
    "plugins/api/lsv_api/app.py": "models say since when they are served",
    "plugins/api/lsv_api/http/context.py": "answers say when they were made",
    "plugins/api/lsv_api/metrics/adapters.py": "a series whose value is the time, as routers read it",
    "plugins/api/lsv_api/ollama/writing.py": "answers say when they were made",
    "plugins/api/lsv_api/responding/database.py": "rows say when they were stored, and expire after days",
    "plugins/api/lsv_api/responding/writing.py": "responses say when they were completed",
    "plugins/bench/lsv_bench/commands/answerer.py": "times of processes on several machines",
    "plugins/bench/lsv_bench/commands/eval.py": "a report says when it was made",
    "plugins/bench/lsv_bench/commands/workload.py": "the name of a file",
    "plugins/doctor/lsv_doctor/report.py": "a report says when it was made",
    "plugins/quant/lsv_quant/conversion/prepared.py": "compared with times of folders, which are days old",
    "plugins/hpu/lsv_hpu/steps/trace.py": "a trace says when a step was",
    "plugins/kv_offload/lsv_kv_offload/bound.py": "compared with times of files, to order them",
    "webui/lsv_webui/chat/conversation.py": "conversations say when they changed",
}


def reads(source: str) -> Iterator[int]:
    """Lines that mention a wall clock, called or passed on."""
    tree = ast.parse(source)
    short = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = short.get(node.id, "")
        else:
            continue
        if name.removeprefix("datetime.") in WALL or name in WALL:
            yield node.lineno


def test_the_wall_clock_is_only_shown_or_stored() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("core", "plugins", "webui", "deploy")
        for path in (ROOT / folder).rglob("*.py")
        if any(reads(path.read_text(encoding="utf-8")))
    }
    assert found == set(SHOWN), "deadlines, rates and ages need time.monotonic; say here what is only shown"


def test_a_deadline_on_the_wall_is_seen() -> None:
    assert list(reads("import time\nends = time.time() + 5\n")) == [2]
    assert list(reads("from time import time as now\nends = now() + 5\n")) == [2]
    assert list(reads("from datetime import datetime\nmade = datetime.now()\n")) == [2]
    assert list(reads("import datetime\nmade = datetime.datetime.now()\n")) == [2]
    assert list(reads("import time\ndef wait(now=time.time): ...\n")) == [2]
    assert not list(reads("import time\nends = time.monotonic() + 5\n"))
