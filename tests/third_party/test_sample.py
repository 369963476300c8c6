"""A package from outside brings models, formats, logits processors, commands and routes without touching lsv."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parent / "lsv-sample"


def test_it_is_listed(sample: Path, run: Callable) -> None:
    found = json.loads(run("-m", "lsv", "plugins", "--json", path=(sample,)).stdout)
    assert found["broken"] == []
    by_name = {plugin["name"]: plugin for plugin in found["plugins"]}
    assert (by_name["sample"]["distribution"], by_name["sample"]["version"]) == ("lsv-sample", "0.3.0")
    assert by_name["sample"]["offers"] == {
        "model": ["sample"],
        "quantiser": ["sample-int8"],
        "logits processor": ["sample-forbid"],
        "command": ["greet"],
        "setting": ["sample.greeting"],
    }
    assert {"core", "cpu", "models"} <= set(by_name)


def test_its_command_and_setting(sample: Path, run: Callable, tmp_path: Path) -> None:
    def greet(*arguments: str, **variables: str) -> str:
        done = run("-m", "lsv", "greet", *arguments, path=(sample,), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    file = tmp_path / "x.yaml"
    file.write_text("plugins: {sample: {greeting: moin}}\n")
    assert greet("you") == "hello, you (default)\n"
    assert greet("you", "--sample-greeting", "hi", "--times=2") == "hi, you (flag --sample-greeting)\n" * 2
    assert greet("you", "--config", str(file)) == f"moin, you (file {file})\n"
    assert greet("you", "--config", str(file), SAMPLE_GREETING="hej") == "hej, you (SAMPLE_GREETING)\n"
    assert greet("you", SAMPLE_GREETING="hej", LSV_SAMPLE_GREETING="ahoy") == "ahoy, you (LSV_SAMPLE_GREETING)\n"


def test_help_shows_both(sample: Path, run: Callable) -> None:
    assert "greet" in run("-m", "lsv", "--help", path=(sample,)).stdout
    assert "Plugin sample" in run("-m", "lsv", "greet", "--help=sample", path=(sample,)).stdout


def test_left_out(sample: Path, run: Callable) -> None:
    done = run("-m", "lsv", "greet", "you", "--no-plugin", "sample", path=(sample,))
    assert done.returncode == 2
    assert "no command 'greet'" in done.stderr


def test_not_installed_it_is_not_there(run: Callable) -> None:
    assert "greet" not in run("-m", "lsv", "--help").stdout


MODEL = """
import json, sys
from pathlib import Path
from lsv.cli.context import CommandContext
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv.resolve import resolve
from lsv_testing.model import check_model, engine_config, load
from lsv_testing.tiny import tiny

folder = tiny("llama", sys.argv[1])
context = CommandContext.open([])
catalog = context.plugins.catalog
check_model(engine_config(folder, "sample"), catalog)

config = json.loads((folder / "config.json").read_text())
(folder / "config.json").write_text(json.dumps({**config, "architectures": ["SampleForCausalLM"]}))
flags = "--quantization sample-int8 --dtype float32 --platform cpu"
settings = context.settings([str(folder), *flags.split()])
resolved = resolve(settings, context.plugins)
declared = declare(resolved, catalog)
ops = bind_ops(declared, catalog, resolved.platform, reference=True)
source = open_source(resolved, declared, catalog)
fill(declared, source)
print(json.dumps({
    "model": resolved.model_offer,
    "quantization": resolved.quantization,
    "option": resolved.options["sample.greeting"],
    "linears": sum(op.count for op in ops if op.op == "linear.coded"),
    "dtypes": sorted({str(b.dtype) for n, b in declared.model.named_buffers() if n.endswith("codes")}),
}))
"""


@pytest.mark.row("F-694")
@pytest.mark.timeout(300)
def test_its_model_and_its_weight_format(sample: Path, run: Callable, tmp_path: Path) -> None:
    """The model computes what transformers does; with the format, four linears a layer and the head hold int8."""
    done = run("-c", MODEL, str(tmp_path), path=(sample,), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "model": "sample",
        "quantization": "sample-int8",
        "option": "hello",
        "linears": 9,
        "dtypes": ["torch.uint8"],
    }


PROCESSOR = """
import json
import torch
from lsv import LLM, SamplingParams
from lsv_base.errors import BadRequest
from lsv_testing.logits import check_logits_processor
from lsv_sample.forbid import Forbid
from lsv_sample.plugin import Forbidden

llm = LLM(platform="cpu", tensor_parallel_size=2)
def answer(*asked):
    params = [SamplingParams(temperature=0.0, max_tokens=20, logits_processors=one) for one in asked]
    return [answers[0] for answers in draw(params)]

def draw(params):
    outputs = llm.generate(["The capital of France is"] * len(params), params, use_tqdm=False)
    return [[list(answer.token_ids) for answer in one.outputs] for one in outputs]

(plain,) = answer({})
forbid = {"sample-forbid": {"token": plain[2]}}
together = answer({}, forbid, {})
(alone,) = answer(forbid)
hot = SamplingParams(temperature=1.5, seed=1, n=3, max_tokens=20)
(drawn,) = draw([hot])
(kept,) = draw([hot.replace(logits_processors={"sample-forbid": {"token": drawn[1][0]}})])
refused = []
for asked in ({"sample-forbit": {}}, {"sample-forbid": {"token": "x"}}):
    try:
        answer(asked)
    except BadRequest as error:
        refused.append(error.message)
check_logits_processor(Forbid(llm.config, 50, torch.device("cpu")), [Forbidden(3), Forbidden(4)])
names = ("plain", "together", "alone", "drawn", "kept", "refused")
print(json.dumps({name: globals()[name] for name in names}))
"""


@pytest.mark.timeout(300)
def test_its_logits_processor(sample: Path, run: Callable) -> None:
    """It changes the answers that ask for it, on every rank, and no others of the batch."""
    done = run("-c", PROCESSOR, path=(sample,), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    plain, alone = found["plain"], found["alone"]
    assert found["together"] == [plain, alone, plain]
    assert alone[:2] == plain[:2]
    assert plain[2] not in alone
    drawn, kept = found["drawn"], found["kept"]
    assert [drawn[1][0] in one for one in kept] == [False] * 3
    unknown, unfit = found["refused"]
    assert "no logits processor 'sample-forbit'; did you mean sample-forbid?" in unknown
    assert unfit == "logits_processors: sample-forbid: Expected `int`, got `str` - at `$.token`"


def test_it_passes_its_conformance_without_being_installed(run: Callable) -> None:
    done = run("-m", "lsv", "plugins", "check", str(SAMPLE), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "ok      manifest lsv_sample.plugin"
    assert "ok      quantiser sample-int8 computes what the plain layer does" in lines
    assert any(line.startswith("skipped model sample computes what transformers does") for line in lines)


def test_its_format_answers(sample: Path, run: Callable) -> None:
    done = run("-m", "lsv", "run", "--quantization", "sample-int8", "--prompt", "Who are you?", path=(sample,))
    assert done.returncode == 0, done.stderr
    assert "lsv-demo" in done.stdout


ACCOUNTS = """
import json, logging
logging.basicConfig(level=logging.WARNING, format="%(message)s")
logging.getLogger("lsv.sample").setLevel(logging.INFO)
from lsv import LLM, SamplingParams
from lsv_sample.usage import TOTALS
with LLM("lsv-demo", platform="cpu", num_gpu_blocks_override=64) as llm:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    outputs = llm.generate([[5, 6], [7]], [params, params.replace(n=2)], use_tqdm=False)
llm.close()
print(json.dumps(TOTALS))
"""

STARTED, STOPPED = "sample: the engine of lsv-demo has started", "sample: the engine of lsv-demo has stopped"


@pytest.mark.timeout(300)
def test_it_hears_of_every_engine_and_request_once(sample: Path, run: Callable) -> None:
    done = run("-c", ACCOUNTS, path=(sample,), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"requests": 2, "prompt_tokens": 3, "tokens": 9}
    lines = done.stderr.splitlines()
    assert [lines.count(STARTED), lines.count(STOPPED)] == [1, 1]
    assert lines.index(STARTED) < lines.index(STOPPED)


@pytest.mark.timeout(300)
def test_it_serves_a_route_of_its_own(sample: Path, serve: Callable) -> None:
    with serve("lsv-demo", path=(sample,)) as server:
        body = {"prompt": [5, 6], "max_tokens": 3, "ignore_eos": True, "n": 2}
        assert server.ask("/v1/completions", body)["usage"]["completion_tokens"] == 6
        assert server.ask("/usage") == {"requests": 1, "prompt_tokens": 2, "tokens": 6}
    assert [server.log.count(STARTED), server.log.count(STOPPED)] == [1, 1]
