"""The offline API over a fake worker: every form of prompts, order, outputs, options, the end."""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

import lsv
from lsv import LLM, EngineArgs, SamplingParams, plugins
from lsv.engine.engine import Engine
from lsv.engine.messages import Update
from lsv.media.options import MediaOptions
from lsv.request.output_kind import RequestOutputKind
from lsv.request.params import PoolingParams
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.scheduler.policy import Fcfs
from lsv.text.prompts import PromptReader
from lsv_base.errors import BadRequest, ConfigError, EngineDied, RequestFailed
from lsv_offline import generation
from lsv_offline.llm import LLMEngine, read_options
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.text import letters

TEMPLATE = "{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
TOKENIZER = letters(97, templates={"default": TEMPLATE})


def make(**changes: Any) -> LLM:
    return LLM.from_engine(Engine(engine_config(**changes), FakeExecutor(), Fcfs(), parts=core_parts), TOKENIZER)


@pytest.fixture
def llm() -> LLM:
    return make()


def greedy(count: int = 6, **params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": count, "ignore_eos": True, **params})


def expected(prompt: list[int], count: int = 6) -> tuple[int, ...]:
    return tuple(fake_tokens.expected_output(make_request(0, tuple(prompt), sampling=greedy(count)), 10_000))


@pytest.mark.row("F-056", "F-057", "F-067", "F-068")
def test_outputs_have_the_names_that_users_know(llm: LLM):
    (output,) = llm.generate("Hello", greedy(logprobs=1, prompt_logprobs=0), use_tqdm=False)
    ids = TOKENIZER.encode("Hello")
    (answer,) = output.outputs
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("Hello", tuple(ids), True)
    assert answer.token_ids == expected(ids)
    assert answer.text == TOKENIZER.decode(answer.token_ids)
    assert (answer.index, answer.finish_reason, answer.stop_reason) == (0, "length", None)
    assert answer.cumulative_logprob == pytest.approx(-0.5 * 6)
    assert [next(iter(position)) for position in answer.logprobs] == list(answer.token_ids)
    assert answer.logprobs[0][answer.token_ids[0]].logprob == -0.5
    assert answer.logprobs[0][answer.token_ids[0]].decoded_token == TOKENIZER.token_text(answer.token_ids[0])
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(ids)
    assert (output.num_cached_tokens, output.encoder_prompt) == (0, None)
    assert "Hello" in repr(output)


@pytest.mark.row("F-026", "F-029", "F-030", "F-031")
@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("Hello", 1),
        (["Hello", "World"], 2),
        ({"prompt": "Hello"}, 1),
        ({"prompt_token_ids": [1, 2]}, 1),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        (["Hello", {"prompt_token_ids": [1, 2]}, {"prompt": "x"}, [4]], 4),
        ([], 0),
    ],
)
def test_every_form_of_prompts(llm: LLM, prompts: Any, count: int):
    outputs = llm.generate(prompts, greedy(), use_tqdm=False)
    assert len(outputs) == count
    for output in outputs:
        assert output.outputs[0].token_ids == expected(list(output.prompt_token_ids))


@pytest.mark.row("F-026", "F-028")
def test_the_old_keyword_for_token_ids(llm: LLM):
    assert llm.generate(prompt_token_ids=[[1, 2]], sampling_params=greedy(), use_tqdm=False)[0].prompt is None
    with pytest.raises(BadRequest, match="not both"):
        llm.generate("x", prompt_token_ids=[1])
    with pytest.raises(BadRequest, match="give prompts"):
        llm.generate()


@pytest.mark.row("F-025", "F-054")
def test_order_is_that_of_the_prompts_whatever_ends_first(llm: LLM):
    params = [greedy(20), greedy(1), greedy(7)]
    outputs = llm.generate([[1], [2], [3]], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [20, 1, 7]
    assert [output.request_id for output in outputs] == ["0", "1", "2"]


def test_more_prompts_than_run_at_a_time():
    outputs = make(max_num_seqs=4).generate([[1, n] for n in range(90)], greedy(3), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [expected([1, n], 3) for n in range(90)]


@pytest.mark.row("F-037", "F-038", "F-346")
def test_the_best_of_several_candidates(llm: LLM):
    (output,) = llm.generate([[1]], SamplingParams(n=2, best_of=4, max_tokens=5, ignore_eos=True), use_tqdm=False)
    assert [answer.index for answer in output.outputs] == [0, 1]
    assert [answer.logprobs for answer in output.outputs] == [None, None]
    sums = [answer.cumulative_logprob for answer in output.outputs]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.row("F-027")
def test_chat(llm: LLM):
    conversation = [{"role": "user", "content": "Hi"}]
    one = llm.chat(conversation, greedy(), use_tqdm=False)
    assert one[0].prompt == "uHia"
    two = llm.chat([conversation, conversation], greedy(), use_tqdm=False, add_generation_prompt=False)
    assert [output.prompt for output in two] == ["uHi", "uHi"]
    assert llm.chat(conversation, greedy(), use_tqdm=False, chat_template="X")[0].prompt == "X"
    assert llm.chat(conversation, greedy(), False, None, "X", True)[0].prompt == "X"
    assert llm.get_tokenizer() is TOKENIZER


@pytest.mark.row("F-027")
def test_chat_reads_messages_as_the_server_does():
    """``developer`` is the system, and the arguments of earlier tool calls are objects."""
    calls = "{% for c in m.tool_calls or () %}{{ c.function.arguments.x }}{% endfor %}"
    template = "{% for m in messages %}{{ m.role }}" + calls + "{% endfor %}"
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 7}'}}]},
    ]
    llm = make()
    assert llm.chat(messages, greedy(), use_tqdm=False, chat_template=template)[0].prompt == "systemassistant7"
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"x": 7, "y'
    assert llm.chat(messages, greedy(), use_tqdm=False, chat_template=template)[0].prompt == "systemassistant7"


@pytest.mark.row("F-028", "F-094")
def test_parameters_of_each_vector(llm: LLM):
    params = [PoolingParams(truncate_prompt_tokens=1), PoolingParams()]
    outputs = llm.encode(prompt_token_ids=[[1, 2], [1, 2]], pooling_params=params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [(1,), (1, 2)]
    with pytest.raises(BadRequest, match="2 prompts need 2 pooling_params"):
        llm.encode(["a", "b"], [PoolingParams()])
    with pytest.raises(BadRequest, match="must be PoolingParams"):
        llm.encode("a", greedy())


@pytest.mark.row("F-032")
def test_prompts_of_encoder_decoders_are_joined():
    read = []
    reader = PromptReader(TOKENIZER, engine_config(), plugins.Plugins().catalog, MediaOptions())
    reader.__dict__["_media"] = SimpleNamespace(
        framed=False, spell=str, place=lambda *given: read.append(given) or Prompt(ids=(1,))
    )
    audio = {"prompt": "", "multi_modal_data": {"audio": "sound"}}
    for decoder in ("ab", {"prompt": "ab"}, {"prompt_token_ids": TOKENIZER.encode("ab")}):
        reader.read({"encoder_prompt": audio, "decoder_prompt": decoder})
    reader.read({"encoder_prompt": audio, "decoder_prompt": None})
    ids = tuple(TOKENIZER.encode("ab"))
    assert read == [*[(ids, {"audio": "sound"}, {})] * 3, ((), {"audio": "sound"}, {})]
    with pytest.raises(BadRequest, match="this model encodes none"):
        reader.read({"encoder_prompt": "text", "decoder_prompt": "x"})


@pytest.mark.row("F-071", "F-076", "F-077")
def test_an_engine_from_arguments(caplog: pytest.LogCaptureFixture):
    engine = LLMEngine.from_engine_args(EngineArgs(model="lsv-demo", max_model_len=128, max_num_seqs=3))
    gc.collect()
    engine.add_request("a", "Hello", greedy(2))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[0].finished
    assert engine.get_model_config().max_model_len == 128
    assert engine.get_scheduler_config().max_num_seqs == 3
    assert engine.get_parallel_config().world_size == 1
    caplog.set_level("INFO", "lsv_offline")
    engine.do_log_stats()
    assert "running 0, waiting 0" in caplog.text


@pytest.mark.row("F-776")
@pytest.mark.parametrize("engine", [LLMEngine, lsv.AsyncLLMEngine])
def test_loggers_are_plugins(engine: Any):
    with pytest.raises(ConfigError, match="use the plugin hook lsv_request_finished"):
        engine.from_engine_args(EngineArgs(model="lsv-demo"), stat_loggers={"mine": object()})


@pytest.mark.row("F-028", "F-069")
def test_vectors(llm: LLM):
    outputs = llm.encode(["Hello", "World"], use_tqdm=False)
    assert [len(output.outputs.embedding) for output in outputs] == [4, 4]
    assert outputs[0].outputs.embedding != outputs[1].outputs.embedding
    assert outputs[0].prompt_token_ids == tuple(TOKENIZER.encode("Hello"))


@pytest.mark.parametrize("prompts", [[""], [[97]], [[1], [1] * 300], [{"text": "x"}]])
def test_bad_prompts_leave_nothing_behind(llm: LLM, prompts: Any):
    with pytest.raises(BadRequest):
        llm.generate([[5], *prompts], greedy(), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.stats.steps_total == 0
    assert len(llm.generate([[1]], greedy(), use_tqdm=False)) == 1


WRONG_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("generate", {"prompts": 3}, "prompts must be a string, a list of token ids"),
    ("generate", {"prompts": object()}, "prompts must be"),
    ("generate", {"prompts": b"text"}, "prompts must be"),
    ("generate", {"prompts": {1, 2}}, "prompts must be"),
    ("generate", {"prompts": ["a", None]}, "prompt must be"),
    ("generate", {"prompts": {"prompt_token_ids": 3}}, "prompt_token_ids must be"),
    ("generate", {"prompts": {"prompt_token_ids": "ab"}}, "prompt_token_ids must be"),
    ("generate", {"prompt_token_ids": 3}, "prompt_token_ids must be"),
    ("generate", {"prompts": "a", "priority": 3}, "priority must be a list of"),
    ("generate", {"prompts": "a", "priority": ["high"]}, "priority must be a list of"),
    ("chat", {"messages": "hi"}, "messages must be a list like"),
    ("chat", {"messages": {"role": "user", "content": "hi"}}, "messages must be a list like"),
    ("chat", {"messages": None}, "messages must be"),
    ("chat", {"messages": ["hi"]}, r"messages\[0\] must be a mapping"),
    ("chat", {"messages": [[{"role": "user", "content": "a"}], 3]}, "messages must be a list of messages"),
    ("chat", {"messages": [{"role": "user", "content": "a", "tool_calls": 3}]}, "tool_calls must be a list"),
    ("chat", {"messages": [{"role": "user", "content": "a"}], "tools": 3}, "tools must be a list"),
    ("chat", {"messages": [{"role": "user", "content": "a"}], "chat_template": 3}, "chat_template must be a string"),
    ("chat", {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 3}, "must be a mapping"),
    ("chat", {"messages": [{"role": "user", "content": "a"}], "mm_processor_kwargs": 3}, "must be a mapping"),
    ("beam_search", {"prompts": "a", "params": None}, "params must be BeamSearchParams"),
    ("embed", {"prompts": 3}, "prompts must be"),
    ("encode", {"prompts": 3}, "prompts must be"),
    ("classify", {"prompts": 3}, "prompts must be"),
    ("reward", {"prompts": 3}, "prompts must be"),
    ("score", {"data_1": 3, "data_2": "a"}, "data_1 must be a string"),
    ("score", {"data_1": "a", "data_2": [None]}, "data_2 must be a string"),
]


@pytest.mark.parametrize(("method", "arguments", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_bad_requests(llm: LLM, method: str, arguments: dict[str, Any], message: str):
    with pytest.raises(BadRequest, match=message):
        getattr(llm, method)(**arguments)
    assert not llm.llm_engine.has_unfinished_requests()


def test_wrong_arguments_of_an_engine_stepped_by_hand(llm: LLM):
    engine: Any = llm.llm_engine
    with pytest.raises(BadRequest, match="request_id must be str"):
        engine.add_request(3, "a", greedy())
    with pytest.raises(BadRequest, match="params must be SamplingParams or PoolingParams"):
        engine.add_request("1", "a", None)
    with pytest.raises(BadRequest, match="priority must be int"):
        engine.add_request("1", "a", greedy(), priority="high")
    with pytest.raises(BadRequest, match="request_id must be"):
        engine.abort_request(3)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("name", ["hf_overrides", "rope_scaling"])
def test_options_that_hold_keys_and_values(name: str):
    with pytest.raises(ConfigError, match=f"argument {name}: {name} must be a JSON object, got 3"):
        LLM(model="lsv-demo", **{name: 3})


def test_processors_are_given_as_a_list():
    with pytest.raises(ConfigError, match="logits_processors must be a list of classes or of their names, got 3"):
        LLM(model="lsv-demo", logits_processors=3)


def test_prompts_may_come_from_an_iterator(llm: LLM):
    assert len(llm.generate(iter(["a", "b"]), greedy(), use_tqdm=False)) == 2


def test_the_package_lists_public_names_only():
    assert dir(lsv) == sorted(lsv.__all__)
    assert lsv.__version__.count(".") == 2
    assert all(getattr(lsv, name) is not None for name in dir(lsv))


def test_counts_that_do_not_match(llm: LLM):
    with pytest.raises(BadRequest, match="2 prompts need 2 "):
        llm.generate([[1], [2]], [greedy()])
    with pytest.raises(BadRequest, match="priority"):
        llm.generate([[1], [2]], greedy(), priority=[1])


def test_a_request_that_fails_costs_no_other_its_answer(caplog: pytest.LogCaptureFixture):
    llm = make(options={"fake.fail": 2})
    outputs = llm.generate([[n] for n in range(1, 9)], greedy(), use_tqdm=False)
    (failed,) = [output for output in outputs if output.error]
    assert failed.finished
    assert failed.outputs[0].finish_reason == FinishReason.ERROR
    with pytest.raises(RequestFailed, match="non-finite"):
        failed.checked()
    for output in outputs:
        if output is not failed:
            assert output.checked().outputs[0].token_ids == expected(list(output.prompt_token_ids))
    assert "1 of 8 requests failed" in caplog.text
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.generate([[1]], greedy(), use_tqdm=False)[0].error is None


def test_a_vector_that_fails_costs_no_other(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    read = generation.read_vector

    def fail_one(update: Update) -> tuple[float, ...]:
        if update.id == 1:
            raise RequestFailed("broken")
        return read(update)

    monkeypatch.setattr(generation, "read_vector", fail_one)
    first, failed, last = llm.encode(["a", "b", "c"], use_tqdm=False)
    assert failed.error.message == "broken"
    assert [len(output.outputs.embedding) for output in (first, failed, last)] == [4, 0, 4]


def test_the_end_of_the_worker():
    llm = make(options={"fake.die": 1})
    with pytest.raises(EngineDied):
        llm.generate([[1]], greedy(), use_tqdm=False)
    with pytest.raises(EngineDied):
        llm.generate([[1]], greedy(), use_tqdm=False)


@pytest.mark.row("F-025")
def test_progress(llm: LLM, capsys: pytest.CaptureFixture[str]):
    llm.generate([[1], [2]], greedy(), use_tqdm=True)
    assert "2/2" in capsys.readouterr().err
    llm.generate([[1], [2]], greedy(), use_tqdm=False)
    assert capsys.readouterr().err == ""


@pytest.mark.row("F-351")
def test_prefix_cache(llm: LLM):
    prompt = [*range(1, 30)]
    llm.generate([prompt], greedy(), use_tqdm=False)
    assert llm.generate([prompt], greedy(), use_tqdm=False)[0].num_cached_tokens == 28
    llm.reset_prefix_cache()
    assert llm.generate([prompt], greedy(), use_tqdm=False)[0].num_cached_tokens == 0


@pytest.mark.row("F-073", "F-074", "F-075", "F-079")
def test_an_engine_stepped_by_hand(llm: LLM):
    engine: LLMEngine = llm.llm_engine
    prompts = [("a", greedy(2)), ("b", greedy(4)), ("v", PoolingParams())]
    grown: dict[str, list[int]] = {}
    while prompts or engine.has_unfinished_requests():
        if prompts:
            name, params = prompts.pop(0)
            engine.add_request(name, name, params)
        for output in engine.step():
            if isinstance(output, lsv.RequestOutput):
                grown.setdefault(output.request_id, []).append(len(output.outputs[0].token_ids))
                assert output.finished == (output.outputs[0].finish_reason is not None)
            else:
                assert output.request_id == "v"
    assert grown == {"a": [1, 2], "b": [1, 2, 3, 4]}
    engine.add_request("c", "c", greedy(50))
    with pytest.raises(BadRequest, match="under way"):
        engine.add_request("c", "c", greedy(50))
    assert engine.get_num_unfinished_requests() == 1
    assert [engine.has_unfinished_requests_for_virtual_engine(number) for number in (0, 1)] == [True, False]
    engine.abort_request(["c", "nobody"])
    assert not engine.has_unfinished_requests()


@pytest.mark.row("F-072")
def test_what_a_request_by_hand_may_bring():
    asked, records = [], []
    llm = make()
    engine = llm.llm_engine
    llm._client._engine.submit = lambda owner, submit, real=llm._client._engine.submit: (
        asked.append(submit.spec), real(owner, submit),
    )  # fmt: skip
    llm._client._report = lambda *given: records.append(given[1])
    engine.add_request("a", "Hello", greedy(2), time.monotonic() - 100, None, {"traceparent": "00-1-2-01"}, priority=3)
    while engine.has_unfinished_requests():
        engine.step()
    assert (asked[0].trace, asked[0].priority) == ({"traceparent": "00-1-2-01"}, 3)
    assert records[0].ttft > 100
    with pytest.raises(BadRequest, match="lora_request must be LoRARequest"):
        engine.add_request("b", "Hello", greedy(2), lora_request=object())
    with pytest.raises(BadRequest, match="prompt adapters are not supported: lsv serves LoRA adapters"):
        engine.add_request("b", "Hello", greedy(2), prompt_adapter_request=object())


@pytest.mark.row("F-022")
def test_a_tokenizer_as_scripts_reach_it(llm: LLM):
    group = llm.llm_engine.get_tokenizer_group()
    ids = group.encode(prompt="Hello")
    assert ids == TOKENIZER.encode("Hello")
    assert group.get_lora_tokenizer(lsv.LoRARequest("a", 1, "/nowhere")) is group.get_lora_tokenizer() is TOKENIZER
    prompt: lsv.PromptInputs = lsv.TokensPrompt(prompt_token_ids=ids)
    assert llm.generate(prompt, greedy(), use_tqdm=False)[0].prompt_token_ids == tuple(ids)


@pytest.mark.row("F-034")
def test_prompts_of_two_lists_are_zipped():
    audio = lsv.TextPrompt(prompt="", multi_modal_data={"audio": "sound"})
    one, two = lsv.zip_enc_dec_prompts(["a", audio], [None, lsv.TokensPrompt(prompt_token_ids=[1])])
    assert (one["encoder_prompt"], one["decoder_prompt"]) == ("a", None)
    assert two == lsv.ExplicitEncoderDecoderPrompt(encoder_prompt=audio, decoder_prompt={"prompt_token_ids": [1]})
    with pytest.raises(BadRequest, match="2 encoder prompts need as many decoder prompts, got 1"):
        lsv.zip_enc_dec_prompts(["a", "b"], ["c"])


def test_closing(llm: LLM):
    with llm:
        llm.generate([[1]], greedy(), use_tqdm=False)
    llm.close()
    with pytest.raises(ConfigError, match="has been closed"):
        llm.generate([[1]], greedy())


@pytest.mark.row("F-023")
def test_deleting_frees_the_engine():
    llm = make()
    executor = weakref.ref(llm.llm_engine.client._engine._executor)
    llm.generate([[1]], greedy(), use_tqdm=False)
    del llm
    gc.collect()
    assert executor() is None


def test_options_by_their_names():
    loaded = plugins.load(["core"])
    settings = read_options({"model": "m", "max_model_len": 77, "dtype": "float16", "seed": 3}, loaded)
    assert (settings["model"], settings["max_model_len"], settings["dtype"]) == ("m", 77, "float16")
    assert settings.source("seed") == "argument seed"
    with pytest.raises(ConfigError, match="did you mean max_model_len\\?"):
        read_options({"max_model_length": 3}, loaded)
    with pytest.raises(ConfigError, match="only LoRA is served"):
        read_options({"enable_prompt_adapter": True}, loaded)
    with pytest.raises(ConfigError, match="max_num_seqs must be"):
        read_options({"max_num_seqs": "many"}, loaded)


@pytest.mark.row("F-025", "F-734")
def test_adapters_where_there_are_none(llm: LLM):
    (output,) = llm.generate([[1]], use_tqdm=False, lora_request=None, prompt_adapter_request=None)
    assert output.outputs
    with pytest.raises(BadRequest, match="lora_request must be LoRARequest"):
        llm.generate([[1]], use_tqdm=False, lora_request=object())
    with pytest.raises(BadRequest, match="start with --enable-lora"):
        llm.generate([[1]], use_tqdm=False, lora_request=lsv.LoRARequest("a", 1, "/nowhere"))
    with pytest.raises(BadRequest, match="prompt adapters are not supported"):
        llm.generate([[1]], use_tqdm=False, prompt_adapter_request=object())


def test_default_parameters(llm: LLM):
    assert llm.get_default_sampling_params() == SamplingParams()
    (output,) = llm.generate([[1]], use_tqdm=False)
    assert output.outputs[0].finish_reason in (FinishReason.LENGTH, FinishReason.STOP)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_outputs_of_steps_are_of_the_kind_that_was_asked_for(llm: LLM, kind: RequestOutputKind):
    llm.llm_engine.add_request("a", "Hello", greedy(output_kind=kind, logprobs=0))
    seen = [output.outputs[0] for output in step_to_the_end(llm)]
    whole = expected(TOKENIZER.encode("Hello"))
    ids = {
        RequestOutputKind.CUMULATIVE: [whole[: count + 1] for count in range(6)],
        RequestOutputKind.DELTA: [(token,) for token in whole],
        RequestOutputKind.FINAL_ONLY: [whole],
    }[kind]
    assert [answer.token_ids for answer in seen] == ids
    assert [tuple(token for shown in answer.logprobs for token in shown) for answer in seen] == ids
    texts = [answer.text for answer in seen]
    assert (texts[-1] if kind is not RequestOutputKind.DELTA else "".join(texts)) == TOKENIZER.decode(whole)
    (output,) = llm.generate("Hello", greedy(output_kind=kind), use_tqdm=False)
    assert output.outputs[0].token_ids == whole


def step_to_the_end(llm: LLM) -> list[Any]:
    found = []
    while llm.llm_engine.has_unfinished_requests():
        found += llm.llm_engine.step()
    return found


def test_requests_keep_the_parameters_that_they_began_with(llm: LLM):
    params = greedy(6)
    llm.llm_engine.add_request("a", "Hello", params)
    params.max_tokens = 2
    llm.llm_engine.add_request("b", "Hello", params)
    ends = {output.request_id: output.outputs[0] for output in step_to_the_end(llm) if output.finished}
    assert [len(ends[name].token_ids) for name in "ab"] == [6, 2]


def test_progress_is_shown_by_what_the_caller_gives(llm: LLM):
    calls: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            calls.append(options["total"])

        def update(self, count: int) -> None:
            calls.append(count)

        def close(self) -> None:
            calls.append("closed")

    llm.generate(["a", "b"], greedy(), use_tqdm=Bar)
    assert calls == [2, 1, 1, "closed"]


def test_the_engine_says_what_model_it_runs(llm: LLM):
    assert llm.llm_engine.model_config == llm.llm_engine.get_model_config()
    with pytest.raises(AttributeError, match="weights of a running engine can't be changed"):
        _ = llm.llm_engine.model_executor.driver_worker


def test_log_probabilities_of_draws_do_not_cover_logits_processors():
    llm = make(processed_logprobs=True, executor="inline")
    with pytest.raises(BadRequest, match="do not cover logits processors") as refused:
        llm.generate("Hello", greedy(logprobs=1, logits_processors=[lambda ids, logits: logits]), use_tqdm=False)
    assert refused.value.param == "logprobs"
