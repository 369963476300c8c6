"""Where a decoding step's time goes outside the model: microseconds of each part, medians over steps.

    python benchmarks/host_time.py [--shape tiny] [--rows 1,32,256] [--steps 100] [--sampled]

The shape ``tiny`` has one small layer and the vocabulary of Qwen2.5, so that nearly everything is host time; with a
real shape (random weights) the last lines say what share of the step the host takes. Sampling stands for itself: it
grows with the vocabulary, not with what is scheduled.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from checkpoints import SHAPES

from lsv import LLM, SamplingParams
from lsv.engine import engine as engine_module
from lsv.engine.messages import EngineMessage, Submit, Tokens
from lsv.engine.stream import OutputStream
from lsv.plugins import load
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.resolve.locate import locate_model
from lsv.scheduler.scheduler import Scheduler
from lsv.text.tokenizer import Tokenizer
from lsv_base.processes.wire import encode_frame
from lsv_runtime.nn import model as nn_model
from lsv_runtime.worker import results, worker
from lsv_runtime.worker.slots import Slots

TINY = {
    **SHAPES["qwen2.5-0.5b"],
    "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 1,
    "num_key_value_heads": 1,
}  # fmt: skip
PROMPT = 96
MODEL = ("model", "head")
HOST = (
    "plan", "slots", "select outputs", "inputs", "attention plan", "step record", "results", "worker", "settle",
    "updates", "engine", "message",
)  # fmt: skip
CLIENT = ("client",)


class Parts:
    """Seconds of each part, step by step, without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(*arguments: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                self.seconds[part] += took - self._inside.pop()
                self._inside[-1] += took

        return run

    def watch(self, part: str, owner: Any, name: str) -> None:
        setattr(owner, name, self.timed(part, getattr(owner, name)))

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, defaultdict(float)
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny", choices=("tiny", *SHAPES))
    parser.add_argument("--rows", default="1,32,256", help="numbers of decoding requests")
    parser.add_argument("--steps", type=int, default=100, help="steps measured for each")
    parser.add_argument("--sampled", action="store_true", help="draw with temperature and top-p instead of greedily")
    options = parser.parse_args()
    sizes = [int(rows) for rows in options.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        config = TINY if options.shape == "tiny" else SHAPES[options.shape]
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        llm = LLM(
            folder, skip_tokenizer_init=True, load_format="dummy", max_num_seqs=max(sizes),
            max_model_len=PROMPT + options.steps + 32, reference_ops=options.shape == "tiny",
        )  # fmt: skip
    tokenizer = Tokenizer.load(str(locate_model("lsv-demo", load().catalog)))
    parts = watch(llm.llm_engine.client._engine)
    params = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0.8, top_p=0.95)
    if not options.sampled:
        params = params.replace(temperature=0.0, top_p=1.0)
    report({rows: measure(llm, parts, tokenizer, params, rows, options.steps) for rows in sizes})


def watch(engine: Any) -> Parts:
    """Time the parts of a step of this engine, wherever they are called from."""
    parts = Parts()
    inner = engine._executor._worker.live.runner
    for part, owner, name in (
        ("plan", Scheduler, "plan"),
        ("settle", Scheduler, "settle"),
        ("updates", engine._open, "take"),
        ("updates", engine_module.Engine, "stats"),
        ("slots", Slots, "apply"),
        ("select outputs", worker, "select_outputs"),
        ("inputs", worker, "build_batch"),
        ("attention plan", inner.backend, "plan"),
        ("step record", type(inner), "run"),
        ("model", nn_model, "run"),
        ("head", inner.model.head, "forward"),
        ("sampling", results, "draw_rows"),
        ("results", results.ResultBuilder, "read"),
        ("results", results.ResultBuilder, "settle"),
        ("results", results.ResultBuilder, "result"),
        ("worker", engine._executor._worker, "launch"),
        ("worker", engine._executor._worker, "finish"),
        ("engine", engine, "step"),
    ):
        if not isinstance(getattr(owner, name), property):
            parts.watch(part, owner, name)
    return parts


def measure(
    llm: LLM, parts: Parts, tokenizer: Tokenizer, params: SamplingParams, rows: int, steps: int
) -> list[dict[str, float]]:
    """The seconds of the parts of each step while ``rows`` requests decode."""
    engine = llm.llm_engine.client._engine
    decoder = msgspec.msgpack.Decoder(EngineMessage)
    submits = [Submit(id=id, spec=spec_of(id, params)) for id in range(rows)]
    # The texts of another tokenizer: any will do, as long as its ids are used.
    streams = [OutputStream(one.spec, [one], model="m", tokenizer=tokenizer, now=0.0) for one in submits]
    read = parts.timed("client", lambda frame: take(decoder.decode(frame[4:]), streams, len(tokenizer.special_ids)))
    write = parts.timed("message", lambda updates: encode_frame(Tokens(tuple(updates), engine.stats)))
    for submit in submits:
        engine.submit(None, submit)
    while sum(bool(update.tokens) for update in engine.step().get(None, ())) < rows:
        pass  # prompts are still entering
    for _ in range(8):
        engine.step()
    found = []
    for _ in range(steps):
        parts.take()
        read(write(engine.step()[None]))
        found.append(parts.take())
    engine.abort_all(None)
    return found


def spec_of(id: int, params: SamplingParams) -> RequestSpec:
    ids = tuple((7919 * id + place) % 30_000 for place in range(PROMPT))
    return RequestSpec(prompts=(Prompt(ids=ids),), sampling=params, request_id=str(id))


def take(message: Tokens, streams: list[OutputStream], first: int) -> None:
    """What a client does with a step's news; the ids are brought into the small tokenizer's range."""
    for update in message.updates:
        ids = tuple(first + token % 256 for token in update.tokens)
        streams[update.id].take(msgspec.structs.replace(update, tokens=ids), 0.0)


def report(found: dict[int, list[dict[str, float]]]) -> None:
    def microseconds(rows: int, *parts: str) -> float:
        return 1e6 * statistics.median(sum(step.get(part, 0.0) for part in parts) for step in found[rows])

    print(f"{'microseconds at rows':24s}" + "".join(f"{rows:>12d}" for rows in found))
    for part in (*MODEL, "sampling", *HOST, *CLIENT):
        print(f"{part:24s}" + "".join(f"{microseconds(rows, part):12.1f}" for rows in found))
    everything = (*MODEL, "sampling", *HOST)
    lines = {"host": HOST, "host and sampling": (*HOST, "sampling"), "step": everything}
    for name, parts in lines.items():
        print(f"{name:24s}" + "".join(f"{microseconds(rows, *parts):12.1f}" for rows in found))
    for name in ("host", "host and sampling"):
        shares = (100 * microseconds(rows, *lines[name]) / microseconds(rows, *everything) for rows in found)
        print(f"{name + ', % of step':24s}" + "".join(f"{share:12.2f}" for share in shares))


if __name__ == "__main__":
    main()
