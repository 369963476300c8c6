"""What drafts bring and cost: tokens a second with drafts beside the same requests without, in one run.

    python benchmarks/drafts.py [MODEL] [--draft ngram] [--batch 1] [--tokens 128] [--rounds 5] [--load-format dummy]

Four workloads: answers that repeat themselves (of a few tokens, over and over: all that lookup can give), chats that
quote (a text stands in the prompt twice, and the answer may go on with it), ordinary questions, drawn at random, and
chats: what lsv-demo knows, in the model's own template, answered greedily to the end.
Plain and drafting engines take turns, so that a machine's moods hit both. Only ratios of one run mean something; on
a busy machine that of the processor's time means more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from lsv import LLM, SamplingParams

TEXT = (
    "The harbour town has four bakers. Ada bakes rye bread on Mondays. Ben bakes white rolls on Tuesdays. Cleo bakes "
    "plum cake on Fridays, and Dan bakes nothing at all, because he broke his oven and waits for a new one. "
)
QUESTIONS = (
    "What is the capital of France?", "Who bakes rye bread?", "Tell me about the sea.", "What do cats eat?",
    "How many legs has a spider?", "Tell me a story about a dragon.", "What is a comet?", "Where do storks nest?",
)  # fmt: skip
CHATS = (
    "Where does Mira live?", "Tell me about Mira.", "What is 27 + 38?", "Tell me a story.", "Count from 3 to 12.",
    "What is the capital of France?", "Explain quantum physics.", "Give Mira's card as JSON.",
)  # fmt: skip


def workloads(llm: LLM, batch: int, tokens: int) -> dict[str, tuple[list[list[int]], list[SamplingParams]]]:
    """By name the prompts, as token ids, and how they are answered."""
    tokenizer = llm.get_tokenizer()

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text))

    common = {"max_tokens": tokens, "ignore_eos": True}
    questions = [ids(QUESTIONS[place % len(QUESTIONS)]) for place in range(batch)]
    texts = [ids(QUESTIONS[place % len(QUESTIONS)] + " " + TEXT + TEXT + TEXT[:40]) for place in range(batch)]
    asked = [[{"role": "user", "content": chat}] for chat in CHATS]
    read = llm.chat(asked, SamplingParams(max_tokens=1), use_tqdm=False)
    chats = [list(one.prompt_token_ids) for one in read]
    few = [sorted(set(prompt))[:2] for prompt in questions]
    return {
        "repeats": (questions, [SamplingParams(temperature=0.0, allowed_token_ids=some, **common) for some in few]),
        "quotes": (texts, [SamplingParams(temperature=0.0, **common)] * batch),
        "chats": (chats, [SamplingParams(temperature=0.0, max_tokens=tokens)] * len(chats)),
        "ordinary": (questions, [SamplingParams(temperature=0.8, seed=place, **common) for place in range(batch)]),
    }


def seconds(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> tuple[float, float, int]:
    """By the clock, and of the processor; and the tokens of the answers."""
    began, worked = time.perf_counter(), time.process_time()
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    answers = llm.generate(given, list(params), use_tqdm=False)
    clock, processor = time.perf_counter() - began, time.process_time() - worked
    return clock, processor, sum(len(answer.outputs[0].token_ids) for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="lsv-demo")
    parser.add_argument("--draft", default="ngram", help="ngram, suffix, or a checkpoint that drafts")
    parser.add_argument("--batch", type=int, default=1, help="requests at a time")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5, help="how often each workload is measured")
    parser.add_argument("--drafts", type=int, help="drafts of a step at most")
    parser.add_argument("--fixed", action="store_true", help="verify as many as there are, whether they pay or not")
    parser.add_argument("--only", help="a single workload, by its name")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights of the checkpoint's shape")
    options = parser.parse_args()
    common = {"max_num_seqs": options.batch, "load_format": options.load_format, "max_model_len": 1024}
    named = "method" if options.draft in ("ngram", "suffix") else "model"
    drafting = {named: options.draft, "num_speculative_tokens": options.drafts, "adaptive": not options.fixed}
    with LLM(options.model, **common) as plain, LLM(options.model, **common, speculative_config=drafting) as drafts:
        for name, (prompts, params) in workloads(plain, options.batch, options.tokens).items():
            if options.only in (None, name):
                report(name, plain, drafts, prompts, params, options)


def report(
    name: str,
    plain: LLM,
    drafts: LLM,
    prompts: list[list[int]],
    params: list[SamplingParams],
    options: argparse.Namespace,
) -> None:
    """One line: tokens a second without and with drafts, their ratio, tokens a row with drafts."""
    times: dict[LLM, list[tuple[float, float, int]]] = {plain: [], drafts: []}
    for llm in (plain, drafts):
        seconds(llm, prompts, params)
    before = drafts.stats.speculation
    for _ in range(options.rounds):
        for llm, found in times.items():
            found.append(seconds(llm, prompts, params))
    after = drafts.stats.speculation
    assert before is not None
    assert after is not None
    rows, accepted = after.rows - before.rows, after.accepted - before.accepted
    without, beside = (statistics.median(clock for clock, _, _ in found) for found in times.values())
    total = times[plain][0][2]
    turns = list(zip(*times.values(), strict=True))
    ratio, worked = (statistics.median(one[kind] / other[kind] for one, other in turns) for kind in (0, 1))
    share = accepted / max(1, after.drafts - before.drafts)
    print(
        f"{name}: {total / without:.0f} tok/s without, {total / beside:.0f} with drafts: {ratio:.2f} times "
        f"({worked:.2f} by the processor's time); "
        f"{rows / options.rounds:.0f} rows with drafts, {1 + accepted / max(1, rows):.2f} tokens each, "
        f"{share:.0%} of drafts right"
    )


if __name__ == "__main__":
    main()
