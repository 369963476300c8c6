"""Models that pool, from a checkpoint to what users get: vectors, labels and scores equal transformers'."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors
from torch.nn import functional

from lsv import LLM, PoolingParams
from lsv_base.errors import BadRequest
from lsv_testing.tiny import SHAPE, draw_weights, write_tokenizer

TEXTS = ["hello world", "a", "the quick brown fox jumps over the lazy dog " * 2]
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
TOLERANCE = 1e-5
PADDED = {"platform": "hpu", "emulate": True, "hpu.skip_warmup": True}


def make(folder: Path, family: str, auto: Any, **keys: Any) -> tuple[Any, Tokenizer]:
    """A tiny random checkpoint with a tokenizer that frames texts as BERT's does; the model, and the tokenizer."""
    shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
    config = transformers.CONFIG_MAPPING[family](**{**shape, **keys})
    torch.manual_seed(0)
    model = auto.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    draw_weights(model, 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.BertProcessing(("<eos>", 257), ("<bos>", 256))
    tokenizer.save(str(folder / "tokenizer.json"))
    return model, tokenizer


def write_modules(folder: Path, mode: str) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (p, k) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({mode: True}))


def states(model: Any, ids: Any) -> torch.Tensor:
    return model(torch.tensor([list(ids)])).last_hidden_state[0]


def close(found: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.row("F-736", "F-669")
def test_an_encoder_of_sentence_transformers(tmp_path):
    model, tokenizer = make(tmp_path, "bert", transformers.AutoModel)
    write_modules(tmp_path, "pooling_mode_mean_tokens")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100}))
    with LLM(str(tmp_path), dtype="float32", max_num_batched_tokens=128) as llm:
        assert (llm.config.max_model_len, llm.config.cached, llm.fit.groups) == (100, False, ())
        outputs = llm.embed(TEXTS, use_tqdm=False)
        for output, text in zip(outputs, TEXTS, strict=True):
            assert list(output.prompt_token_ids) == tokenizer.encode(text).ids
            close(output.outputs.embedding, functional.normalize(states(model, output.prompt_token_ids).mean(0), dim=0))
        (found,) = llm.encode(TEXTS[0], use_tqdm=False, pooling_task="token_embed")
        close(found.outputs.data, functional.normalize(states(model, found.prompt_token_ids), dim=-1))
        scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS, use_tqdm=False)]
        assert scores[0] == pytest.approx(1.0)
        assert max(scores[1:]) < 1.0
        for refused in (lambda: llm.generate("x", use_tqdm=False), lambda: llm.classify("x", use_tqdm=False)):
            with pytest.raises(BadRequest, match="it can embed texts"):
                refused()
        with pytest.raises(BadRequest, match="not trained for shorter vectors"):
            llm.encode("x", PoolingParams(dimensions=3), use_tqdm=False)
        tokenizer.enable_truncation(20)
        for params in (None, PoolingParams(), [PoolingParams()]):
            (found,) = llm.embed(TEXTS[2], use_tqdm=False, pooling_params=params, truncate_prompt_tokens=20)
            assert list(found.prompt_token_ids) == tokenizer.encode(TEXTS[2]).ids
            close(found.outputs.embedding, functional.normalize(states(model, found.prompt_token_ids).mean(0), dim=0))


@pytest.mark.row("F-742")
@pytest.mark.parametrize("options", [{"quantization": "fp8"}, {"quantization": "int8"}, {"dtype": "float16"}], ids=str)
def test_an_encoder_in_fewer_bits_says_nearly_the_same(options, tmp_path):
    model, _ = make(tmp_path, "bert", transformers.AutoModel)
    write_modules(tmp_path, "pooling_mode_mean_tokens")
    with LLM(str(tmp_path), **{"dtype": "float32", **options}) as llm:
        assert llm.config.quantization == options.get("quantization")
        for output in llm.embed(TEXTS, use_tqdm=False):
            plain = functional.normalize(states(model, output.prompt_token_ids).mean(0), dim=0)
            found = torch.tensor(output.outputs.embedding)
            assert torch.dot(found, plain) > 0.99
            assert (found - plain).abs().max() > TOLERANCE


@pytest.mark.row("F-670", "F-737")
@pytest.mark.parametrize(
    ("family", "platform"), [("bert", {}), ("roberta", {}), ("bert", PADDED)], ids=["bert", "roberta", "padded steps"]
)
def test_a_cross_encoder_reads_both_texts(family, platform, tmp_path):
    keys = {"type_vocab_size": 1, "pad_token_id": 1} if family == "roberta" else {}
    model, tokenizer = make(tmp_path, family, transformers.AutoModelForSequenceClassification, num_labels=1, **keys)
    with LLM(str(tmp_path), dtype="float32", task="score", **platform) as llm:
        for output, text in zip(llm.score("query", TEXTS, use_tqdm=False), TEXTS, strict=True):
            pair = tokenizer.encode("query", text)
            types = {"token_type_ids": torch.tensor([pair.type_ids])} if family == "bert" else {}
            assert output.outputs.score == pytest.approx(
                float(model(torch.tensor([pair.ids]), **types).logits.sigmoid()), abs=TOLERANCE
            )
        (cut,) = llm.score("query", TEXTS[2], use_tqdm=False, truncate_prompt_tokens=20)
        tokenizer.enable_truncation(20)
        assert list(cut.prompt_token_ids) == tokenizer.encode("query", TEXTS[2]).ids
        params = PoolingParams(truncate_prompt_tokens=20, truncation_side="left")
        (cut,) = llm.score("query", TEXTS[2], use_tqdm=False, pooling_params=params)
        tokenizer.enable_truncation(20, direction="left")
        assert list(cut.prompt_token_ids) == tokenizer.encode("query", TEXTS[2]).ids
        assert llm.classify(TEXTS[0], use_tqdm=False)[0].outputs.num_classes == 1


@pytest.mark.row("F-103", "F-737")
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_cross_encoder_that_is_to_embed_gives_vectors_and_scores(family, tmp_path):
    keys = {"type_vocab_size": 1, "pad_token_id": 1}
    model, tokenizer = make(tmp_path, family, transformers.AutoModelForSequenceClassification, num_labels=1, **keys)
    with LLM(str(tmp_path), dtype="float32", task="embed") as llm:
        for output, text in zip(llm.embed(TEXTS, use_tqdm=False), TEXTS, strict=True):
            ids = torch.tensor([tokenizer.encode(text).ids])
            first = model.base_model(ids).last_hidden_state[0, 0]
            wanted = torch.nn.functional.normalize(first, dim=-1).tolist()
            assert output.outputs.embedding == pytest.approx(wanted, abs=TOLERANCE)
        for output, text in zip(llm.score("query", TEXTS, use_tqdm=False), TEXTS, strict=True):
            ids = torch.tensor([tokenizer.encode("query", text).ids])
            assert output.outputs.score == pytest.approx(float(model(ids).logits.sigmoid()), abs=TOLERANCE)


def test_a_language_model_with_labels(tmp_path):
    model, tokenizer = make(tmp_path, "qwen3", transformers.AutoModelForSequenceClassification, num_labels=3, **GROUPED)
    with LLM(str(tmp_path), dtype="float32") as llm:
        for output, text in zip(llm.classify(TEXTS, use_tqdm=False), TEXTS, strict=True):
            logits = model(torch.tensor([tokenizer.encode(text).ids])).logits[0]
            close(output.outputs.probs, logits.softmax(-1))


def test_labels_of_tokens(tmp_path):
    model, tokenizer = make(
        tmp_path, "qwen2", transformers.AutoModelForTokenClassification, num_labels=3, num_key_value_heads=2
    )
    with LLM(str(tmp_path), dtype="float32", max_num_batched_tokens=32) as llm:
        for _ in range(2):  # what the first has left in the cache is not enough for the second
            (output,) = llm.encode(TEXTS[2], use_tqdm=False)
            logits = model(torch.tensor([tokenizer.encode(TEXTS[2]).ids])).logits[0]
            close(output.outputs.data, logits.softmax(-1))


def test_a_reward_model_of_steps(tmp_path):
    model, _ = make(tmp_path, "qwen2", transformers.AutoModelForCausalLM, num_key_value_heads=2)
    generator = torch.Generator().manual_seed(0)
    layers = {
        f"score.{name}": torch.randn(*shape, generator=generator)
        for name, shape in {"0.weight": (64, 64), "0.bias": (64,), "2.weight": (2, 64), "2.bias": (2,)}.items()
    }
    from safetensors.torch import load_file, save_file

    stored = load_file(tmp_path / "model.safetensors")
    save_file({**{k: v for k, v in stored.items() if k != "lm_head.weight"}, **layers}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {**config, "architectures": ["Qwen2ForProcessRewardModel"], "num_labels": 2}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    step = ord("o")
    with LLM(str(tmp_path), dtype="float32", pooler_config={"pooling_type": "STEP", "step_tag_id": step}) as llm:
        (output,) = llm.reward(TEXTS[2], use_tqdm=False)
        ids = list(output.prompt_token_ids)
        inner = functional.relu(states(model.model, ids) @ layers["score.0.weight"].T + layers["score.0.bias"])
        rewards = inner @ layers["score.2.weight"].T + layers["score.2.bias"]
        chosen = [place for place, token in enumerate(ids) if token == step]
        close(output.outputs.data, rewards.softmax(-1)[chosen])


@pytest.mark.row("F-670")
def test_a_reranker_that_answers_yes_or_no(tmp_path):
    model, tokenizer = make(tmp_path, "qwen3", transformers.AutoModelForCausalLM, **GROUPED)
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["n", "y"]}
    with LLM(str(tmp_path), dtype="float32", hf_overrides=overrides) as llm:
        for output, text in zip(llm.score("query", TEXTS, use_tqdm=False), TEXTS, strict=True):
            logits = model(torch.tensor([tokenizer.encode("query", text).ids])).logits[0, -1]
            assert output.outputs.score == pytest.approx(
                float(torch.sigmoid(logits[ord("y")] - logits[ord("n")])), abs=TOLERANCE
            )


@pytest.mark.row("F-669", "F-643", "F-743")
@pytest.mark.parametrize(("family", "bare"), [("qwen3", False), ("mistral", True)])
def test_a_language_model_that_embeds(family, bare, tmp_path):
    model, _ = make(tmp_path, family, transformers.AutoModel if bare else transformers.AutoModelForCausalLM, **GROUPED)
    inner = model if bare else model.model
    write_modules(tmp_path, "pooling_mode_lasttoken")
    with LLM(str(tmp_path), dtype="float32", hf_overrides={"is_matryoshka": True}) as llm:
        assert llm.config.pooler.task == "embed"
        for output in llm.embed(TEXTS, use_tqdm=False):
            close(output.outputs.embedding, functional.normalize(states(inner, output.prompt_token_ids)[-1], dim=0))
        (short,) = llm.encode(TEXTS[0], PoolingParams(dimensions=5), use_tqdm=False)
        close(short.outputs.embedding, functional.normalize(states(inner, short.prompt_token_ids)[-1, :5], dim=0))


def test_means_of_prompts_that_are_computed_in_chunks(tmp_path):
    model, _ = make(tmp_path, "qwen3", transformers.AutoModelForCausalLM, **GROUPED)
    options = {"pooler_config": {"pooling_type": "MEAN"}, "max_num_batched_tokens": 32, "task": "embed"}
    with LLM(str(tmp_path), dtype="float32", **options) as llm:
        for _ in range(2):
            for output in llm.embed(TEXTS, use_tqdm=False):
                mean = states(model.model, output.prompt_token_ids).mean(0)
                close(output.outputs.embedding, functional.normalize(mean, dim=0))


def test_a_language_model_whose_tokens_see_both_sides(tmp_path):
    model, _ = make(tmp_path, "qwen2", transformers.AutoModel, num_key_value_heads=2)
    overrides = {"is_causal": False}
    with LLM(str(tmp_path), dtype="float32", hf_overrides=overrides, pooler_config={"pooling_type": "MEAN"}) as llm:
        assert not llm.config.cached
        (output,) = llm.embed(TEXTS[0], use_tqdm=False)
        count = len(output.prompt_token_ids)
        everything = {"full_attention": torch.zeros(1, 1, count, count)}
        seen = model(torch.tensor([list(output.prompt_token_ids)]), attention_mask=everything).last_hidden_state[0]
        close(output.outputs.embedding, functional.normalize(seen.mean(0), dim=0))
