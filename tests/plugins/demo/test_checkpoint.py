"""The shipped checkpoint: complete, small, cuttable in two, and readable by transformers."""

import json

import pytest
import transformers
from safetensors import safe_open

from lsv_demo import CHECKPOINT

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.fixture(scope="module")
def config() -> dict[str, object]:
    return json.loads((CHECKPOINT / "config.json").read_text())


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return transformers.AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.mark.parametrize("name", FILES)
def test_file_is_there(name: str) -> None:
    assert (CHECKPOINT / name).is_file()


def test_weights_are_small_and_bfloat16() -> None:
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 14_000_000
    with safe_open(CHECKPOINT / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118


@pytest.mark.parametrize("name", ["hidden_size", "intermediate_size", "vocab_size"])
def test_dimension_is_a_multiple_of_256(config: dict[str, int], name: str) -> None:
    assert config[name] % 256 == 0


def test_heads_divide_by_two(config: dict[str, int]) -> None:
    assert config["num_attention_heads"] % 2 == 0
    assert config["num_key_value_heads"] % 2 == 0
    assert config["num_attention_heads"] * config["head_dim"] % 256 == 0


def test_configuration_is_a_tied_llama_with_room(config: dict[str, object]) -> None:
    assert config["architectures"] == ["LsvDemoForConditionalGeneration"]
    assert config["model_type"] == "llama"
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] >= 2048


def test_generation_stops_at_the_end_of_a_turn(tokenizer: transformers.AutoTokenizer) -> None:
    settings = json.loads((CHECKPOINT / "generation_config.json").read_text())
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert settings["eos_token_id"] == ends
    assert tokenizer.eos_token_id == ends[0]


@pytest.mark.parametrize("text", ["Where is Lorn?", "12 + 345", "Grüße, 你好 🙂", "a\n\n\tb  c ", "<|im_start|>user\n"])
def test_any_text_comes_back(tokenizer: transformers.AutoTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_every_digit_is_a_token(tokenizer: transformers.AutoTokenizer) -> None:
    assert len(tokenizer.tokenize("2024")) == 4


def test_encoding_adds_nothing(tokenizer: transformers.AutoTokenizer) -> None:
    assert tokenizer.encode("Lorn") == tokenizer.encode("Lorn", add_special_tokens=False)


def rendered(tokenizer: transformers.AutoTokenizer, messages: list[dict[str, object]], prompt: bool) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)


def test_template_renders_a_conversation(tokenizer: transformers.AutoTokenizer) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Who is Mira?"},
    ]
    assert rendered(tokenizer, messages, True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nWho is Mira?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_adds_no_prompt_unasked(tokenizer: transformers.AutoTokenizer) -> None:
    assert rendered(tokenizer, [{"role": "user", "content": "Hi"}], False) == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_template_bears_missing_content(tokenizer: transformers.AutoTokenizer, message: dict[str, object]) -> None:
    assert rendered(tokenizer, [message], False) == "<|im_start|>assistant\n<|im_end|>\n"


def test_template_joins_text_parts(tokenizer: transformers.AutoTokenizer) -> None:
    parts = [{"type": "text", "text": "Who is "}, {"type": "text", "text": "Mira?"}]
    assert rendered(tokenizer, [{"role": "user", "content": parts}], False) == (
        "<|im_start|>user\nWho is Mira?<|im_end|>\n"
    )


def test_template_has_a_place_for_what_is_shown(
    tokenizer: transformers.AutoTokenizer, config: dict[str, dict[str, object]]
) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}, {"type": "audio"}, {"type": "video"}]
    text = rendered(tokenizer, [{"role": "user", "content": parts}], False)
    assert text == "<|im_start|>user\n<|image|>What is it?<|audio|><|video|><|im_end|>\n"
    places = config["senses"]["tokens"]
    assert places == {kind: tokenizer.convert_tokens_to_ids(f"<|{kind}|>") for kind in ("image", "audio", "video")}
    assert set(places.values()) < set(tokenizer.encode(text))
