"""Conversations as the browser keeps them, seen from several windows."""

from __future__ import annotations

import pytest

from .conftest import ask, last_answer, note

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]


LISTED = "titles => `${titles}` == [...document.querySelectorAll('#lsv-chats label')].map(one => one.innerText)"


def test_windows_keep_each_others_conversations(api, pages, visit) -> None:
    one = visit(pages.url(api.url))
    other = visit(pages.url(api.url), beside=one)
    ask(one, "First")
    note(one)
    other.wait_for_function(LISTED, arg=["First"])
    ask(other, "Second")
    note(other)
    one.wait_for_function(LISTED, arg=["Second", "First"])
    one.reload()
    one.wait_for_selector("#lsv-chat .user.message")
    assert one.locator("#lsv-chat .user.message").inner_text() == "First"  # each shows its own again
    one.wait_for_function(LISTED, arg=["Second", "First"])
    other.click("#lsv-delete")
    one.wait_for_function(LISTED, arg=["First"])


def test_a_conversation_that_goes_on_in_another_window_is_shown(api, pages, visit) -> None:
    one = visit(pages.url(api.url))
    ask(one, "First")
    note(one)
    other = visit(pages.url(api.url), beside=one)
    other.wait_for_selector(".lsv-note")
    api.engine.answer = "Further."
    ask(other, "Second")
    one.wait_for_function("n => document.querySelectorAll('#lsv-chat .lsv-note').length == n", arg=2)
    one.wait_for_function("document.querySelector('#lsv-chat').innerText.includes('Further.')")
    ask(one, "Third")
    other.wait_for_function("n => document.querySelectorAll('#lsv-chat .lsv-note').length == n", arg=3)
    assert last_answer(other).inner_text().startswith("Further.")


STORE = """() => {
  const record = (id, at, text = 'x') => JSON.stringify({id, at, title: id, messages: [{role: 'user', text}]});
  const names = () => JSON.parse(lsvStore.index()).map(([id]) => id);
  const found = {};
  for (let n = 0; n < 60; n++) lsvStore.write(record(`c${n}`, n + 1));
  found.kept = [names().length, names()[0], names()[49]];
  lsvStore.write(record('c30', 5, 'older'));
  found.newest_wins = JSON.parse(lsvStore.read('c30')).messages[0].text;
  for (let n = 0; n < 8; n++) lsvStore.write(record(`big${n}`, 100 + n, 'y'.repeat(1 << 20)));
  found.full = names().filter(id => id.startsWith('big'));
  lsvStore.write(JSON.stringify({id: 'big7', at: 200, title: '', messages: []}));
  found.forgotten = names().includes('big7');
  lsvStore.write('no record');
  localStorage.setItem('lsv.chat.broken', '{');
  found.unharmed = names().length > 0;
  localStorage.clear();
  return found;
}"""


def test_the_store_keeps_the_newest(api, pages, visit) -> None:
    found = visit(pages.url(api.url)).evaluate(STORE)
    assert found["kept"] == [50, "c59", "c10"]
    assert found["newest_wins"] == "x"
    assert found["full"][0] == "big7"
    assert 2 <= len(found["full"]) < 8
    assert (found["forgotten"], found["unharmed"]) == (False, True)
