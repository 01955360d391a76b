"""What judges cost: no call passes the budget, whoever makes it, and nothing spent is forgotten."""

import fcntl
import json
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atelier.config.sections.judge import BudgetConfig, PricesConfig
from atelier.errors import Stopped
from atelier.judge.ledger import BudgetSpent, Ledger, Usage, money

PRICES = {"m": PricesConfig(input=5.0, output=20.0, cached=1.0)}
CALL = Usage(1000, 100, 0)  # 0.007


def test_prices_are_per_million_and_cached_input_has_its_own():
    assert money(Usage(1_000_000, 0), PRICES["m"]) == 5.0
    assert money(Usage(0, 1_000_000), PRICES["m"]) == 20.0
    assert money(Usage(1_000_000, 0, 400_000), PRICES["m"]) == pytest.approx(3.4)
    assert money(Usage(1_000_000, 0, 400_000), PricesConfig(input=5.0)) == 5.0
    assert money(Usage(10, 0, 400_000), PRICES["m"]) == pytest.approx(1e-5)


def test_sums_are_of_settled_calls_and_open_reservations(tmp_path):
    ledger = Ledger(tmp_path / "new" / "ledger.jsonl", PRICES)
    assert not ledger.knows_price("m")
    ledger.settle(ledger.reserve("m"), Usage(1000, 100, 10))
    ledger.settle(ledger.reserve("other"), Usage(1, 2))
    ledger.settle(ledger.reserve("m"), None)  # lost: as dear as the dearest
    ledger.settle(ledger.reserve("m"), None, sent=False)  # refused: free
    ledger.reserve("m")  # under way
    for one in (ledger, Ledger(tmp_path / "new" / "ledger.jsonl", PRICES)):
        spent = one.spent()
        assert (spent.calls, spent.input, spent.output, spent.cached) == (4, 1001, 102, 10)
        assert spent.money == pytest.approx(3 * money(Usage(1000, 100, 10), PRICES["m"]))
        assert one.knows_price("m")


@pytest.mark.parametrize("path", ["ledger.jsonl", None])
def test_calls_stop_before_the_one_too_many(tmp_path, path):
    ledger = Ledger(path and tmp_path / path, PRICES, BudgetConfig(calls=3))
    ledger.settle(ledger.reserve("m"), CALL)
    ledger.settle(ledger.reserve("m"), None, sent=False)
    ledger.reserve("m")
    ledger.reserve("m")
    with pytest.raises(BudgetSpent, match="3 of 3 calls"):
        ledger.reserve("m")
    assert ledger.spent().calls == 3


@pytest.mark.parametrize(("most", "calls"), [(0.0, 0), (0.021, 3), (0.0209, 2), (0.027, 3)])
def test_money_stops_before_the_call_that_would_pass_it(tmp_path, most, calls):
    ledger = Ledger(tmp_path / "ledger.jsonl", PRICES, BudgetConfig(money=most))
    for _ in range(calls):
        ledger.settle(ledger.reserve("m"), CALL)
    with pytest.raises(BudgetSpent, match=r"budget\.money"):
        ledger.reserve("m")
    assert ledger.spent().money <= most + 1e-12


def test_a_restart_goes_on_with_what_was_spent(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path, PRICES, BudgetConfig(calls=2)).reserve("m")  # killed during the call
    second = Ledger(path, PRICES, BudgetConfig(calls=2))
    second.settle(second.reserve("m"), CALL)
    with pytest.raises(BudgetSpent):
        Ledger(path, PRICES, BudgetConfig(calls=2)).reserve("m")
    Ledger(path, PRICES, BudgetConfig(calls=3)).reserve("m")


def test_a_line_that_was_cut_off_costs_nothing_but_itself(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, PRICES)
    first.settle(first.reserve("m"), CALL)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:30])
    second = Ledger(path, PRICES)
    second.reserve("m")
    assert second.spent().calls == 2
    assert "damaged line" in caplog.text
    third = Ledger(path, PRICES)
    assert (third.spent().calls, third.spent().input) == (2, 1000)


@pytest.mark.parametrize("line", ["{}", "4", '{"money": NaN}', "\x00"])
def test_a_foreign_line_is_left_out_and_said(tmp_path, line, caplog):
    path = tmp_path / "ledger.jsonl"
    path.write_text(f"{line}\n")
    assert Ledger(path, PRICES).spent().calls == 0
    assert "damaged line" in caplog.text


def test_without_its_file_a_budget_stops_and_a_mere_count_goes_on(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    path.mkdir()
    with pytest.raises(Stopped, match="cannot be kept") as raised:
        Ledger(path, PRICES, BudgetConfig(calls=9)).reserve("m")
    assert raised.value.exit_code == 75
    ledger = Ledger(path, PRICES)
    for _ in range(3):
        ledger.settle(ledger.reserve("m"), CALL)
    assert ledger.spent().calls == 3
    assert caplog.text.count("in memory only") == 1


def _spend(path, made):
    ledger = Ledger(path, PRICES, BudgetConfig(calls=60))
    for _ in range(100):
        try:
            ledger.settle(ledger.reserve("m"), CALL)
        except BudgetSpent:
            return
        made.put(1)


def test_processes_and_threads_share_a_budget(tmp_path):
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    made = context.Queue()
    others = [context.Process(target=_spend, args=(path, made)) for _ in range(2)]
    for other in others:
        other.start()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: _spend(path, made), range(3)))
    for other in others:
        other.join(30)
        assert other.exitcode == 0
    assert sum(made.get(timeout=5) for _ in range(60)) == 60
    assert made.empty()
    assert Ledger(path, PRICES).spent().calls == 60
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_nobody_counts_while_another_one_writes(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, PRICES)
    with ThreadPoolExecutor(1) as pool:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            reserving = pool.submit(ledger.reserve, "m")
            time.sleep(0.2)
            assert not reserving.done()
            assert path.read_bytes() == b""
        reserving.result(10)
    assert ledger.spent().calls == 1


def test_threads_of_one_ledger_never_pass_the_budget(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", PRICES, BudgetConfig(money=0.1))
    ledger.settle(ledger.reserve("m"), CALL)

    def spend(_):
        try:
            ledger.settle(ledger.reserve("m"), CALL)
        except BudgetSpent:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert 1 <= sum(pool.map(spend, range(60))) <= 13
    assert 0.007 * 2 <= ledger.spent().money <= 0.1
