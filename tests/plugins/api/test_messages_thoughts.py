"""Thoughts of Anthropic's Messages, and their signatures."""

from __future__ import annotations

from lsv_api.messages.signatures import Signer
from suite.messages import SECRET, USER, WEATHER, answer, ask, events, joined, refused, thinker


async def test_thoughts_come_back_with_their_signature(start):
    site = await thinker(start, settings=SECRET)
    first = (await answer(site, tools=[WEATHER]))["content"]
    assert first[0]["thinking"] == "Hm. Well."
    result = {"type": "tool_result", "tool_use_id": first[2]["id"], "content": "sunny"}
    turns = [*USER, {"role": "assistant", "content": first}, {"role": "user", "content": [result]}]
    await answer(site, messages=turns, tools=[WEATHER])
    first[0]["thinking"] = "Hm. Ill."
    message = await refused(site, messages=turns, tools=[WEATHER])
    assert message.startswith("messages[1].content[0]: Invalid `signature`")


async def test_hidden_thoughts_are_restored_from_their_signature(start):
    site = await thinker(start)
    thinking = {"type": "adaptive", "display": "omitted"}
    (block, *_) = (await answer(site, thinking=thinking))["content"]
    assert block["thinking"] == ""
    streamed = joined(events((await ask(site, thinking=thinking, stream=True)).text))[0]
    assert streamed == block
    signer = Signer("s")
    assert signer.check("", signer.sign("Hm.", hidden=True), "").text == "Hm."


def test_signatures_of_other_keys_are_taken_unchecked():
    """After a restart with another key a conversation goes on, with its thoughts."""
    ours, other = Signer("a"), Signer("b")
    assert ours.check("Hm.", ours.sign("Hm."), "") == ("Hm.", True)
    for signature in (other.sign("Hm."), "", "EqQBCkYIBhgCKkDt", "lsv1"):
        assert ours.check("Hm.", signature, "") == ("Hm.", False)


async def test_thoughts_stay_after_a_restart(start, caplog):
    site = await thinker(start, settings={"api.signing_key": "new"})
    block = {"type": "thinking", "thinking": "Hm.", "signature": Signer("old").sign("Hm.")}
    turns = [*USER, {"role": "assistant", "content": [block, {"type": "text", "text": "A"}]}, *USER]
    with caplog.at_level("INFO", "lsv.api"):
        await answer(site, messages=turns)
    assert "took 1 thinking blocks that this server's key has not signed" in caplog.text
