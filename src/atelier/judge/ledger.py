"""What judges cost: every call in a file of JSON lines, and a budget that no call passes.

A call is reserved before it is sent and settled after it, each a line. A reservation that nothing
settles, because its process was killed, stays counted: the call may have been billed. Processes
that share a file see each other's lines, so they share the budget.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from atelier.config.sections.judge import BudgetConfig, PricesConfig
from atelier.errors import Stopped
from atelier.judge.usage import JudgeUsage

logger = logging.getLogger(__name__)

_MILLION = 1e6
_ROUNDING = 1e-9  # of sums of money; no call that is paid for costs less
_SUMS = ("calls", "money", "input", "output", "cached")


@dataclass(frozen=True)
class Usage:
    """Tokens of one call. `cached`: those of the input that the provider had kept."""

    input: int
    output: int
    cached: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


class BudgetSpent(Exception):
    """The next call would pass the budget."""


def money(usage: Usage, prices: PricesConfig) -> float:
    """What a call cost, in the currency of the prices."""
    cached_price = prices.input if prices.cached is None else prices.cached
    cached = min(usage.cached, usage.input)
    parts = (
        (usage.input - cached) * prices.input,
        cached * cached_price,
        usage.output * prices.output,
    )
    return sum(parts) / _MILLION


class _Line(BaseModel):
    """A line of the file: a reservation, or with `settled` what became of it."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    id: str
    model: str
    settled: bool
    calls: int
    money: float
    input: int = 0
    output: int = 0
    cached: int = 0


@dataclass
class Spent:
    """Sums over every call of a ledger, open reservations included."""

    calls: int = 0
    money: float = 0.0
    input: int = 0
    output: int = 0
    cached: int = 0
    dearest: dict[str, float] = field(default_factory=dict)  # call by model, among the settled


class Ledger:
    """Counts calls for any number of threads, and of processes that share the file.

    Args:
        path: the file, made with the first call; None counts in memory only.
        prices: by model; a model without prices costs nothing.
        budget: the most that may be spent; None: any.
    """

    def __init__(
        self,
        path: Path | None,
        prices: Mapping[str, PricesConfig],
        budget: BudgetConfig | None = None,
    ) -> None:
        self._path = path
        self._prices = prices
        self._budget = budget
        self._lock = threading.Lock()
        self._spent = Spent()
        self._open: dict[str, _Line] = {}
        self._read_to = 0  # bytes of the file that are in the sums
        self._warned = False

    @property
    def bounds_money(self) -> bool:
        """Whether a call's price must be known for the budget to hold."""
        return self._budget is not None and self._budget.money is not None

    def spent(self) -> Spent:
        """What was spent so far, by every process.

        Raises:
            Stopped: there is a budget, and the file cannot be read.
        """
        with self._lock:
            self._exchange(lambda: None)
            return replace(self._spent, dearest=dict(self._spent.dearest))

    def knows_price(self, model: str) -> bool:
        """Whether a call of the model was settled, so that the next one's price can be bounded."""
        with self._lock:
            return model in self._spent.dearest

    def reserve(self, model: str) -> str:
        """Count a call that is about to be sent, at the price of the dearest so far.

        Returns:
            The reservation, for `settle`.

        Raises:
            BudgetSpent: it would pass the budget.
            Stopped: there is a budget, and the file cannot be written.
        """
        identity = uuid.uuid4().hex

        def reservation() -> _Line:
            price = self._spent.dearest.get(model, 0.0)
            self._require_within_budget(price)
            return _Line(id=identity, model=model, settled=False, calls=1, money=price)

        with self._lock:
            self._exchange(reservation)
        return identity

    def settle(self, reservation: str, usage: Usage | None, sent: bool = True) -> JudgeUsage:
        """Say what became of a call.

        Args:
            usage: its tokens; None leaves it at what was reserved.
            sent: False for a call that the endpoint refused: it costs nothing.

        Returns:
            What this call alone counts for.

        Raises:
            Stopped: there is a budget, and the file cannot be written.
        """
        with self._lock:
            line = self._settlement(self._open[reservation], usage, sent)
            self._exchange(lambda: line)
        return JudgeUsage(**{name: getattr(line, name) for name in _SUMS})

    def _settlement(self, reserved: _Line, usage: Usage | None, sent: bool) -> _Line:
        changed: dict[str, Any] = {"settled": True}
        if not sent:
            changed |= {"calls": 0, "money": 0.0}
        elif usage is not None:
            prices = self._prices.get(reserved.model, PricesConfig())
            changed |= {**vars(usage), "money": money(usage, prices)}
        return reserved.model_copy(update=changed)

    def _require_within_budget(self, price: float) -> None:
        if self._budget is None:
            return
        calls, most_money = self._budget.calls, self._budget.money
        if calls is not None and self._spent.calls + 1 > calls:
            raise BudgetSpent(f"budget.calls: {self._spent.calls} of {calls} calls are made")
        spent = self._spent.money
        if most_money is not None and spent + max(price, _ROUNDING) > most_money + _ROUNDING / 2:
            raise BudgetSpent(
                f"budget.money: {spent:.6g} of {most_money:g} are spent, and a call may cost "
                f"{price:.6g}"
            )

    # The file ------------------------------------------------------------------------------------

    def _exchange(self, make: Callable[[], _Line | None]) -> None:
        """Take up what others wrote, then add the line that `make` gives, if any."""
        if self._path is None:
            self._take(make())
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._read(file)
                if (line := make()) is not None:
                    self._append(file, line)
        except OSError as error:
            self._without_file(make, error)

    def _without_file(self, make: Callable[[], _Line | None], error: OSError) -> None:
        text = f"{self._path}: the judge's ledger cannot be kept ({error})"
        if self._budget is not None:
            raise Stopped(f"{text}, and a budget cannot be kept without it; then resume") from error
        if not self._warned:
            self._warned = True
            logger.warning("%s; calls are counted in memory only", text)
        self._take(make())

    def _read(self, file: BinaryIO) -> None:
        file.seek(self._read_to)
        content = file.read()
        self._read_to += len(content)
        for line in content.splitlines():
            if not line.strip():
                continue
            try:
                self._take(_Line.model_validate_json(line))
            except (ValidationError, ValueError):
                # Cut off while it was written: a reservation before its call, or a settlement,
                # without which the reservation counts. Nothing that was spent is lost.
                logger.warning("%s: a damaged line, left out", self._path)

    def _append(self, file: BinaryIO, line: _Line) -> None:
        file.seek(0, os.SEEK_END)
        content = line.model_dump_json().encode() + b"\n"
        # A newline first, where a line was cut off: it must not swallow this one.
        if file.tell() and not _ends_a_line(file):
            content = b"\n" + content
        written = os.write(file.fileno(), content)
        if written < len(content):
            raise OSError(f"only {written} of {len(content)} bytes were written")
        self._read_to += written
        self._take(line)

    def _take(self, line: _Line | None) -> None:
        """Add a line to the sums; a settlement in place of its reservation."""
        if line is None:
            return
        if (reserved := self._open.pop(line.id, None)) is not None:
            self._add(reserved, -1)
        self._add(line, 1)
        if not line.settled:
            self._open[line.id] = line
        elif line.calls and (line.input or line.output):
            known = self._spent.dearest.get(line.model, 0.0)
            self._spent.dearest[line.model] = max(known, line.money)

    def _add(self, line: _Line, sign: int) -> None:
        for name in _SUMS:
            setattr(self._spent, name, getattr(self._spent, name) + sign * getattr(line, name))


def read_spent(path: Path) -> Spent:
    """What the file of a ledger says was spent in all. Writes nothing.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    ledger = Ledger(path, {})
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        ledger._read(file)
    return ledger._spent


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")
