"""What the constructor of ``LLM`` takes, with a model that is loaded."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import lsv_demo
from lsv import LLM, SamplingParams
from lsv_base.errors import BadRequest, LsvError

CHECKPOINT = Path(lsv_demo.__file__).parent / "checkpoint"
SMALL: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 2}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
DRAWN = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)


def ask(llm: LLM, prompt: Any = "Hello", params: SamplingParams = GREEDY) -> tuple[int, ...]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.row("F-002")
def test_a_tokenizer_of_another_folder(tmp_path: Path) -> None:
    for file in CHECKPOINT.glob("*token*"):
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "another"}))
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    with LLM("lsv-demo", str(tmp_path), **SMALL) as llm:
        assert llm.chat([{"role": "user", "content": "Hi"}], GREEDY, use_tqdm=False)[0].prompt == "another"


@pytest.mark.row("F-004")
def test_token_ids_alone() -> None:
    with LLM("lsv-demo", skip_tokenizer_init=True, **SMALL) as llm:
        (output,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY.replace(detokenize=False), use_tqdm=False)
        assert (output.prompt, output.outputs[0].text, len(output.outputs[0].token_ids)) == (None, "", 4)
        with pytest.raises(BadRequest, match="tokenizer"):
            llm.generate("text", GREEDY, use_tqdm=False)


@pytest.mark.row("F-010")
def test_a_seed_repeats_what_is_drawn() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with LLM("lsv-demo", seed=seed, **SMALL) as llm:
            drawn.append(ask(llm, params=DRAWN))
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.row("F-011", "F-023")
def test_engines_share_the_memory_and_give_it_back() -> None:
    first, second = (LLM("lsv-demo", gpu_memory_utilization=share, **SMALL) for share in (0.2, 0.1))
    assert ask(first) == ask(second)
    assert first.fit.num_blocks > second.fit.num_blocks
    expected = ask(first)
    del first, second
    gc.collect()
    with LLM("lsv-demo", gpu_memory_utilization=0.2, **SMALL) as llm:
        assert ask(llm) == expected


@pytest.mark.row("F-008")
def test_names_of_formats_may_be_in_capitals() -> None:
    with LLM("lsv-demo", quantization="FP8", **SMALL) as llm:
        assert llm.config.quantization == "fp8"
        assert len(ask(llm)) == 4


@pytest.mark.row("F-024")
def test_whether_a_model_is_supported_is_found_out_by_trying(tmp_path: Path) -> None:
    with LLM(str(CHECKPOINT), **SMALL) as llm:
        assert llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].text
    shutil.copy(CHECKPOINT / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NobodysModel"], "model_type": "nobodys"}))
    with pytest.raises(LsvError, match="NobodysModel"):
        LLM(str(tmp_path), **SMALL)
