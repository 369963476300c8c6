"""Priorities of one account against requests of other accounts."""

from __future__ import annotations

import itertools

import pytest

from lsv.plugins.guarded_policy import GuardedPolicy
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.scheduler.limits import Limits
from lsv.scheduler.policy import Fcfs, Priority
from lsv_api.accounts.account import read_accounts
from lsv_base.errors import ConfigError
from lsv_testing.fakes.rig import Rig

MOST_URGENT = -(1 << 31)


class Flood:
    """An endless stream of requests of account ``a``, and single requests of others."""

    def __init__(self, **given) -> None:
        limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=128)
        self.rig = Rig(policy=Priority(), limits=limits, num_blocks=given.pop("num_blocks", 64), prefix_caching=False)
        self._given = given
        self._ids = itertools.count()

    def ask(self, tenant: str, tokens: int = 4, **given) -> int:
        id = next(self._ids)
        spec = RequestSpec(
            prompts=(Prompt(ids=tuple(range(id, id + 6))),), sampling=SamplingParams(max_tokens=tokens),
            request_id=f"r{id}", tenant=tenant, **given,
        )  # fmt: skip
        self.rig.scheduler.add(RequestGroup(id, spec, arrival=self.rig.clock()), self.rig.clock())
        return id

    def step(self) -> None:
        while self.rig.scheduler.counts.waiting < 12:
            self.ask("a", 40, **self._given)
        self.rig.step()

    def steps_until_answered(self, id: int, most: int = 400) -> int:
        for step in range(most):
            self.step()
            if id in self.rig.news and self.rig.news[id][-1].finish:
                return step
        return most


def test_the_most_urgent_priority_starves_no_other_account():
    flood = Flood(priority=MOST_URGENT)
    for _ in range(5):
        flood.step()
    assert flood.steps_until_answered(flood.ask("b")) < 10, "b gets a slot of those that a has beyond its share"


def test_urgent_requests_of_one_account_are_preempted_as_well():
    flood = Flood(priority=MOST_URGENT, num_blocks=24)
    mine = flood.ask("b", 60)
    assert flood.steps_until_answered(mine) < 150, "60 steps of its own, and its turns of being preempted"
    preempted = {
        news.request.spec.tenant for all in flood.rig.news.values() for news in all if news.request.preemptions
    }
    assert "a" in preempted, "blocks run out, and a has at least as many as b"


def test_an_account_goes_before_others_up_to_its_bound():
    for bound, expected in ((0, True), (-5, False)):
        flood = Flood(priority=MOST_URGENT, priority_at_least=bound)
        flood.step()
        assert (flood.steps_until_answered(flood.ask("b"), 100) < 100) is expected
    flood = Flood(priority=MOST_URGENT, priority_at_least=-5)
    flood.step()
    answered = flood.steps_until_answered(flood.ask("b", priority=-6, priority_at_least=-6), 100)
    assert answered < 100, "b may go before that"


def test_priority_orders_the_requests_of_one_account():
    flood = Flood()
    first = flood.ask("a", 40)
    flood.rig.step()
    others = [flood.ask("a", 4, priority=priority) for priority in (7, 0, -3, 5)]
    flood.ask("b", 1)
    flood.rig.run()
    begun = [begin.ids[0] for plan in flood.rig.plans for begin in plan.begin]
    assert [id for id in begun if id in (first, *others)] == [first, others[2], others[1], others[3], others[0]]


def test_tenants_share_fairly_under_a_policy_without_tenant_keys():
    class Shortest:
        def key(self, group, now):
            return (len(group.spec.prompt.ids),)

        def budget(self, running, costs):
            return costs.quick_tokens

    guarded = GuardedPolicy(Shortest(), "shortest", "mine")
    group = RequestGroup(0, RequestSpec(prompts=(Prompt(ids=(1, 2)),), sampling=SamplingParams(), request_id="r"))
    assert guarded.key(group, 0.0) == (2,)
    assert guarded.key_between_tenants(group, 0.0) == Fcfs().key_between_tenants(group, 0.0)


def test_the_bound_of_an_account_is_read_from_its_table(tmp_path):
    file = tmp_path / "accounts.toml"
    file.write_text('[a]\nkeys = ["1"]\n[b]\nkeys = ["2"]\npriority_at_least = -10\n')
    bounds = {account.name: account.priority_at_least for account in read_accounts(["3"], str(file)).all}
    assert (bounds["a"], bounds["b"], len(bounds)) == (0, -10, 3)
    assert set(bounds.values()) == {0, -10}
    file.write_text('[a]\nkeys = ["1"]\npriority_at_least = "none"\n')
    with pytest.raises(ConfigError, match="priority_at_least"):
        read_accounts([], str(file))
