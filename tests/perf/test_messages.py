"""Bytes that a token costs on the sockets between client, engine and workers."""

from __future__ import annotations

from lsv.engine.engine import Engine
from lsv.engine.messages import Submit, Tokens
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import StepPlan, StepResult
from lsv.scheduler.policy import Fcfs
from lsv_base.processes.wire import encode_frame
from lsv_runtime.worker.channel import Ran, Run
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec

SIZES = (1, 32, 256)
PROMPT = 8
WARM_STEPS, STEPS = 4, 8


class Recorder(FakeExecutor):
    """Notes how large plans and results are as messages to a worker in another process."""

    plan_bytes = result_bytes = 0

    def submit(self, plan: StepPlan) -> None:
        self.plan_bytes += len(encode_frame(Run(plan)))
        super().submit(plan)

    def collect(self, timeout: float) -> StepResult:
        result = super().collect(timeout)
        self.result_bytes += len(encode_frame(Ran(result)))
        return result


def test_bytes_of_a_token(frozen) -> None:
    counts: dict[str, float] = {}
    for rows in SIZES:
        executor = Recorder()
        engine = start(executor, rows)
        for _ in range(WARM_STEPS):
            engine.step()
        executor.plan_bytes = executor.result_bytes = 0
        told = sum(step_bytes(engine) for _ in range(STEPS))
        for name, size in (("plan", executor.plan_bytes), ("result", executor.result_bytes), ("news", told)):
            counts[f"{name} bytes a token at {rows} rows"] = size / (rows * STEPS)
    frozen.check(counts)


def start(executor: Recorder, rows: int) -> Engine[str]:
    config = engine_config(max_num_seqs=rows, num_blocks=16 * rows, max_num_batched_tokens=PROMPT * rows)
    engine: Engine[str] = Engine(config, executor, Fcfs(), parts=core_parts, now=lambda: 0.0)
    engine.start(lambda stage, done, total: None)
    for number in range(rows):
        prompt = tuple((number + place) % 50 for place in range(PROMPT))
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        engine.submit("client", Submit(id=number, spec=make_spec(prompt, params, request_id=f"request {number}")))
    return engine


def step_bytes(engine: Engine[str]) -> int:
    """Bytes of the message that tells a client what a step brought."""
    news = engine.step()
    return len(encode_frame(Tokens(tuple(news["client"]), engine.stats)))
