"""Names of models that clients use, and the served ones that they stand for."""

from __future__ import annotations

import pytest

from lsv_base.errors import ConfigError


async def test_an_alias_stands_for_a_served_model(start):
    site = await start(model_aliases={"claude-*": "fake"})
    assert (await site.chat(model="claude-opus")).json()["model"] == "fake"
    assert (await site.http.get("/v1/models/claude-opus")).json()["id"] == "fake"
    assert (await site.chat(model="gpt-4")).status_code == 404


async def test_a_served_name_goes_before_an_alias_and_an_alias_before_later_ones(start):
    site = await start(names=("fake", "other"), model_aliases={"oth*": "fake", "x-1": "other", "x-*": "fake"})
    assert (await site.http.get("/v1/models/other")).json()["id"] == "other"
    assert (await site.http.get("/v1/models/x-1")).json()["id"] == "other"
    assert (await site.http.get("/v1/models/x-2")).json()["id"] == "fake"


@pytest.mark.parametrize(
    ("aliases", "message"),
    [({"claude-x": "gone"}, r"'claude-x': .*does not exist"), ({"claude-x": 1}, "JSON object of names"), ([], "JSON")],
)
async def test_aliases_that_stand_for_nothing_stop_the_start(start, aliases, message):
    with pytest.raises(ConfigError, match=message):
        await start(model_aliases=aliases)
