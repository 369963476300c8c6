"""Text encoder-decoders give transformers' logits and tokens, and follow what their checkpoints say of prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from lsv import LLM, SamplingParams, zip_enc_dec_prompts
from lsv_base.errors import BadRequest, CheckpointError, ConfigError
from lsv_doctor.models.check import check
from lsv_doctor.models.classes import read_classes
from lsv_doctor.models.orders import Order
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config
from lsv_testing.tiny import write_tokenizer
from suite.engines import Engines

CLASSES = read_classes()
NATIVE = (
    "BartForConditionalGeneration", "PLBartForConditionalGeneration", "MvpForConditionalGeneration",
    "MBartForConditionalGeneration", "M2M100ForConditionalGeneration", "PegasusForConditionalGeneration",
    "BlenderbotForConditionalGeneration", "BlenderbotSmallForConditionalGeneration", "MarianMTModel",
    "T5ForConditionalGeneration", "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration",
    "FSMTForConditionalGeneration", "LongT5ForConditionalGeneration", "LEDForConditionalGeneration",
    "SwitchTransformersForConditionalGeneration", "NllbMoeForConditionalGeneration", "PegasusXForConditionalGeneration",
    "BigBirdPegasusForConditionalGeneration", "SeamlessM4TForTextToText", "SeamlessM4Tv2ForTextToText",
    "T5Gemma2ForConditionalGeneration", "ProphetNetForConditionalGeneration",
)  # fmt: skip
MENDED = {
    "NllbMoeForConditionalGeneration": "transformers' own experts but the first two are never asked",
    "BigBirdPegasusForConditionalGeneration": "transformers' own encoder reads long texts otherwise once it has read a "
    "short one",
    "ProphetNetForConditionalGeneration": "transformers' own biases are those of other tokens and heads where it has "
    "several tokens",
}
"""What of transformers is put right before it is compared with."""
QUICK = ("BartForConditionalGeneration", "M2M100ForConditionalGeneration", "UMT5ForConditionalGeneration")
TEXT = "Rain fell on the hills all night."
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.mark.row("F-350", "F-642")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NATIVE]
)
def test_answers_equal_transformers(name: str, tmp_path: Path) -> None:
    """With log probabilities of every position, in chunks, among others, after prefix hits and after preemption."""
    verdict = check(CLASSES[name].order, tmp_path)
    assert (verdict.state, verdict.detail) == ("runs", MENDED.get(name, ""))
    assert set(verdict.met) == {"prefix", "preemption"}
    assert (verdict.cells["ranks"], verdict.cells["quantised"]) == ("yes", "yes")


@pytest.mark.slow
@pytest.mark.row("F-350")
@pytest.mark.parametrize(("blocks", "met"), [(27, "prefix"), (29, "preemption")])
def test_windows_of_t5gemma(blocks: int, met: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three kinds: enough of them for prefixes to stay are too many for requests to lose theirs."""
    monkeypatch.setattr("lsv_doctor.models.check._BLOCKS", {True: (blocks, 144)})
    verdict = check(CLASSES["T5GemmaForConditionalGeneration"].order, tmp_path)
    assert (verdict.state, verdict.detail, verdict.met) == ("runs", "", (met,))
    assert (verdict.cells["ranks"], verdict.cells["quantised"]) == ("yes", "yes")


@pytest.fixture
def answers_as(tmp_path: Path) -> Callable[[Any], None]:
    """Asserts that a model of transformers and its checkpoint give the same greedy answer to the same text."""

    def compare(model: Any, start: int = 0) -> None:
        save(model, tmp_path)
        write_tokenizer(tmp_path)
        (output,) = ask(tmp_path, {"encoder_prompt": TEXT, "decoder_prompt": {"prompt_token_ids": [start]}})
        model.generation_config = transformers.GenerationConfig(pad_token_id=0, decoder_start_token_id=start)
        found = model.generate(torch.tensor([list(TEXT.encode())]), max_new_tokens=12, do_sample=False)
        assert found[0].tolist() == [start, *output.outputs[0].token_ids]

    return compare


def test_experts_of_switch_take_so_many_tokens_of_a_text(answers_as: Callable[..., None]) -> None:
    usual = {**tiny_config("switch_transformers").to_dict(), "expert_capacity": 3}
    model = make_model(
        transformers.SwitchTransformersForConditionalGeneration, transformers.SwitchTransformersConfig(**usual)
    )
    taken = []
    router = model.encoder.block[1].layer[-1].mlp.router
    router.register_forward_hook(lambda module, given, found: taken.append(int(found[0].sum())))
    answers_as(model)
    assert taken[-1] < len(TEXT), "no token was left out"


def test_an_encoder_of_another_width(answers_as: Callable[..., None]) -> None:
    config = tiny_config("t5gemma")
    encoder = {**config.encoder.to_dict(), "hidden_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.T5GemmaConfig(**{**config.to_dict(), "encoder": encoder})
    answers_as(make_model(transformers.T5GemmaForConditionalGeneration, config), start=2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"moe_eval_capacity_token_fraction": 0.5}, "depends on those of other requests"),
        ({"second_expert_policy": "random"}, "second_expert_policy"),
    ],
)
def test_routes_that_depend_on_others_are_refused(
    changes: Mapping[str, Any], said: str, tmp_path: Path, catalog: Any
) -> None:
    given = {**tiny_config("nllb-moe").to_dict(), "architectures": ["NllbMoeForConditionalGeneration"], **changes}
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(CheckpointError, match=said):
        declare(engine_config(tmp_path, "nllb_moe", max_len=128), catalog)


Model = Callable[..., Path]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bart")
    save(make_model(transformers.BartForConditionalGeneration, tiny_config("bart")), folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def ruled(bart: Path, tmp_path: Path) -> Model:
    """The checkpoint with keys of its generation_config.json changed."""

    def make(**changes: Any) -> Path:
        for file in bart.iterdir():
            if not (tmp_path / file.name).exists():
                (tmp_path / file.name).symlink_to(file)
        rules = json.loads((bart / "generation_config.json").read_text())
        (tmp_path / "generation_config.json").unlink()
        (tmp_path / "generation_config.json").write_text(json.dumps({**rules, **changes}))
        return tmp_path

    return make


def generated(folder: Path, ids: tuple[int, ...], **options: Any) -> list[int]:
    """transformers' own answer, its decoder's prompt included, by the rules of the checkpoint."""
    model = transformers.BartForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.forced_eos_token_id = None
    model.generation_config.eos_token_id = None
    found = model.generate(torch.tensor([ids]), do_sample=False, **options)
    return [int(token) for token in found[0]]


def ask(folder: Path, *prompts: Any, **options: Any) -> list[Any]:
    with LLM(str(folder), dtype="float32", **options) as llm:
        return llm.generate(list(prompts), GREEDY, use_tqdm=False)


@pytest.mark.row("F-032", "F-067", "F-033")
def test_a_plain_prompt_is_encoded_and_the_answer_begins_as_the_checkpoint_says(ruled: Model) -> None:
    folder = ruled(forced_bos_token_id=7)
    texts = TEXT, {"encoder_prompt": TEXT, "decoder_prompt": None}, {"prompt_token_ids": tuple(TEXT.encode())}
    plain, explicit, ids = ask(folder, *texts)
    assert plain.encoder_prompt == explicit.encoder_prompt == TEXT
    assert ids.encoder_prompt is None
    for output in (plain, explicit, ids):
        assert output.prompt is None
        assert output.prompt_token_ids == (2, 7)
        assert output.encoder_prompt_token_ids == tuple(TEXT.encode())
        assert [2, 7, *output.outputs[0].token_ids] == generated(folder, tuple(TEXT.encode()), max_new_tokens=13)


@pytest.mark.row("F-032")
def test_an_answer_goes_on_from_the_decoders_prompt(bart: Path, engine_for: Engines) -> None:
    pairs = zip_enc_dec_prompts([TEXT, {"prompt": TEXT}, TEXT], ["so", {"prompt_token_ids": [2, *b"so"]}, ""])
    said, told, bare = engine_for(bart, dtype="float32").generate(list(pairs), GREEDY, use_tqdm=False)
    assert (said.prompt, said.prompt_token_ids) == ("so", (2, *b"so"))
    assert told.prompt_token_ids == said.prompt_token_ids
    assert bare.prompt_token_ids == (2,)
    given = torch.tensor([said.prompt_token_ids])
    wanted = generated(bart, tuple(TEXT.encode()), decoder_input_ids=given, max_new_tokens=12)
    for output in (said, told):
        assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == wanted


def test_forbidden_tokens_are_in_no_answer(ruled: Model) -> None:
    (free,) = ask(ruled(), TEXT)
    first, _, third, fourth = free.outputs[0].token_ids[:4]
    folder = ruled(suppress_tokens=[first], bad_words_ids=[[third, fourth]])
    (bound,) = ask(folder, TEXT)
    assert first not in bound.outputs[0].token_ids
    assert [2, *bound.outputs[0].token_ids] == generated(folder, tuple(TEXT.encode()), max_new_tokens=12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"begin_suppress_tokens": [5]}, "begin_suppress_tokens"),
        ({"decoder_start_token_id": [2, 3]}, "decoder_start_token_id"),
        ({"forced_bos_token_id": "en"}, "forced_bos_token_id"),
    ],
)
def test_rules_that_are_not_followed_are_refused(ruled: Model, changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        LLM(str(ruled(**changes)))


def test_what_is_not_applied_is_said(ruled: Model) -> None:
    with LLM(str(ruled(num_beams=4, no_repeat_ngram_size=3))) as llm:
        (reason,) = [one for one in llm.config.reasons if one.name == "generation"]
    assert "num_beams=4" in reason.why
    assert "no_repeat_ngram_size=3" in reason.why
    assert "forced_eos_token_id=2" in reason.why


def test_prompts_that_can_not_be_encoded_are_refused(bart: Path, engine_for: Engines) -> None:
    def told(prompt: Any, **changes: Any) -> str:
        with pytest.raises(BadRequest) as caught:
            llm.generate([prompt], SamplingParams(max_tokens=4, **changes), use_tqdm=False)
        return str(caught.value)

    llm = engine_for(bart, dtype="float32")
    assert "128" in told({"prompt_token_ids": [5] * 129})
    assert "320" in told({"prompt_token_ids": [5, 320]})
    assert "at least one token" in told("")
    assert "does not support media" in told({"encoder_prompt": {"prompt": "x", "multi_modal_data": {"image": 1}}})
    both = {"encoder_prompt": TEXT, "decoder_prompt": "so"}
    assert "truncate_prompt_tokens" in told(both, truncate_prompt_tokens=4)
    (cut,) = llm.generate([TEXT], SamplingParams(max_tokens=4, truncate_prompt_tokens=4), use_tqdm=False)
    assert cut.encoder_prompt_token_ids == tuple(TEXT.encode()[-4:])
    with pytest.raises(BadRequest, match="makes no vectors"):
        llm.embed([TEXT])


def test_beams_attend_to_the_text(bart: Path, engine_for: Engines) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, use_beam_search=True, best_of=3, n=1, ignore_eos=True)
    (output,) = engine_for(bart, dtype="float32").generate([TEXT], params, use_tqdm=False)
    model = transformers.BartForConditionalGeneration.from_pretrained(bart, dtype=torch.float32)
    read, ids = torch.tensor([list(TEXT.encode())]), torch.tensor([[2, *output.outputs[0].token_ids]])
    with torch.inference_mode():
        scores = model(input_ids=read, decoder_input_ids=ids[:, :-1]).logits[0].log_softmax(-1)
    total = float(scores.gather(1, ids[0, 1:, None]).sum())
    assert output.outputs[0].cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_a_models_own_tensors_are_enough(bart: Path, tmp_path: Path, catalog: Any) -> None:
    """Without a head in its architecture and names, as the first checkpoints of the line are stored."""
    model = transformers.BartForConditionalGeneration.from_pretrained(bart, dtype=torch.float32)
    model.model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BartModel"]
    (output,) = ask(tmp_path, TEXT)
    assert len(output.outputs[0].token_ids) == 12


LEGACY = {
    "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "gelu", "add_final_layer_norm": False,
    "architectures": ["BartForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 0,
    "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 64, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96, "decoder_layerdrop": 0.0, "decoder_layers": 1, "decoder_start_token_id": 2, "dropout": 0.1,
    "early_stopping": True, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "encoder_layerdrop": 0.0,
    "encoder_layers": 1, "eos_token_id": 2, "force_bos_token_to_be_generated": True, "forced_eos_token_id": 2,
    "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True, "length_penalty": 2.0,
    "max_length": 142, "max_position_embeddings": 1024, "min_length": 56, "model_type": "bart",
    "no_repeat_ngram_size": 3, "normalize_before": False, "num_beams": 4, "num_hidden_layers": 1, "output_past": True,
    "pad_token_id": 1, "prefix": " ", "scale_embedding": False, "task_specific_params": {"summarization": {}},
    "transformers_version": "4.7.0.dev0", "use_cache": True, "vocab_size": 50264,
}  # fmt: skip


def test_keys_of_published_configurations_are_known(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LEGACY))
    declared = declare(engine_config(tmp_path, "bart", max_len=1024), catalog)
    assert [group.cross_len for group in declared.groups] == [None, 1024]


def test_an_unknown_key_is_refused(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LEGACY, "attention_window": 64}))
    with pytest.raises(CheckpointError, match="attention_window"):
        declare(engine_config(tmp_path, "bart", max_len=1024), catalog)


def test_embeddings_of_switch_that_are_not_tied_are_refused(tmp_path: Path, catalog: Any) -> None:
    config = {**tiny_config("switch_transformers").to_dict(), "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="tie_word_embeddings is False, and this architecture has True"):
        declare(engine_config(tmp_path, "switch"), catalog)


def test_orders_of_encoder_decoders_encode() -> None:
    assert CLASSES["BartForConditionalGeneration"].order == Order("BartForConditionalGeneration", "bart", True)


DERIVED = ("is_gated_act", "dense_act_fn", "scale_decoder_outputs")


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("gate", ["relu", "gated-gelu"])
def test_a_head_of_its_own_is_read_where_there_is_one(own: bool, gate: str, tmp_path: Path) -> None:
    config = tiny_config("t5")
    usual = {name: value for name, value in config.to_dict().items() if name not in DERIVED}
    config = transformers.T5Config(**{**usual, "feed_forward_proj": gate, "tie_word_embeddings": not own})
    model = make_model(transformers.T5ForConditionalGeneration, config)
    if own:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.2)
    save(model, tmp_path)
    write_tokenizer(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in stored) == own
    (output,) = ask(tmp_path, TEXT)
    read, ids = torch.tensor([list(TEXT.encode())]), torch.tensor([[0, *output.outputs[0].token_ids]])
    with torch.inference_mode():
        wanted = model(input_ids=read, decoder_input_ids=ids[:, :-1]).logits[0]
    assert wanted.argmax(-1).tolist() == list(output.outputs[0].token_ids)


def test_biases_are_refused_by_attention_without_them() -> None:
    class Plain(DenseAttention):
        biased = False

    layer = AttentionLayer(0, 4, 4, 16, 1.0, biases=torch.zeros(4, 9))
    assert Plain().supports(layer) == "it has no biases by distance"
    assert DenseAttention().supports(layer) is None


def test_numbers_that_overflow_are_refused(tmp_path: Path) -> None:
    save(make_model(transformers.T5ForConditionalGeneration, tiny_config("t5")), tmp_path)
    with pytest.raises(ConfigError, match="float16"):
        LLM(str(tmp_path), dtype="float16", skip_tokenizer_init=True)
