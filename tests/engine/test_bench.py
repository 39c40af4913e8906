"""What a benchmark asks of a table, and the arithmetic on what it gets. The numbers are a machine's affair."""

import pytest

from engine import bench
from engine.bench import BenchPlan, measure
from engine.bench_steps import BenchSequences
from engine.fake_table import FakeTable, small_limits
from engine.function_table import Row, TableLimits

WEIGHT_BYTES = 1000


class MeasuredFake(FakeTable):
    """A FakeTable with the extras, and a record of its decode steps: (rows, their position)."""

    backend = "Pretend"
    waited_ns = 0
    gpu_bytes = 4096

    def __init__(self, limits: TableLimits, **options: float) -> None:
        super().__init__(limits, delay=3, **options)  # type: ignore[arg-type]
        self.decoded: list[tuple[int, int]] = []
        self.prefilled = 0
        self.most_in_flight = 0
        self._rows: list[Row] = []

    @property
    def dispatches_last_step(self) -> int:
        return 16

    def measure_bandwidth_gb_s(self) -> float:
        self.gpu_bytes = 10**9
        return 12.5

    def embed(self, rows: list[Row]) -> None:
        super().embed(rows)
        self._rows = rows

    def prefill(self) -> None:
        super().prefill()
        self.prefilled += len(self._rows)

    def decode(self) -> None:
        super().decode()
        assert len({row.position for row in self._rows}) == 1
        self.decoded.append((len(self._rows), self._rows[0].position))

    def end_forward(self) -> int:
        step = super().end_forward()
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return step


@pytest.fixture
def table() -> MeasuredFake:
    return MeasuredFake(small_limits(context_length=512, num_pages=64))


def test_every_number_of_the_plan_is_there(table: MeasuredFake) -> None:
    notes: list[str] = []
    report = measure(table, WEIGHT_BYTES, BenchPlan(prefill=(33, 100), contexts=(50, 200), batches=(8,)), notes.append)
    assert notes == []
    assert [result.tokens for result in report.prefill] == [33, 100]
    assert all(result.tokens_per_s > 0 for result in report.prefill)
    assert [(result.batch, result.context) for result in report.decode] == [(1, 50), (1, 200), (8, 50)]
    assert [result.dispatches_per_token for result in report.decode] == [16, 16, 2]
    assert all(result.tokens_per_s > 0 and result.host_ms_per_token_contended > 0 for result in report.decode)
    assert report.ttft_ms == pytest.approx(33e3 / report.prefill[0].tokens_per_s)
    assert report.peak_gpu_bytes == 4096
    assert report.bandwidth.achieved_gb_s == pytest.approx(WEIGHT_BYTES * report.decode[0].tokens_per_s / 1e9)
    assert report.bandwidth.ceiling_gb_s == 12.5


def test_steps_are_in_flight_as_the_engine_has_them(table: MeasuredFake) -> None:
    measure(table, WEIGHT_BYTES, BenchPlan(prefill=(16,), contexts=(50,), batches=(3,)), print)
    assert table.most_in_flight == table.limits.max_in_flight
    assert table.in_flight == 0
    assert (1, 50 + bench.DECODE_STEPS - 1) in table.decoded
    assert (3, 50) in table.decoded


def test_a_rising_row_of_contexts_computes_each_position_once(table: MeasuredFake) -> None:
    sequences = BenchSequences(table)
    sequences.prefill(1, 100)
    sequences.decode(1, 100, 10)
    sequences.prefill(1, 150)
    assert table.prefilled == 150
    sequences.prefill(2, 20)
    assert table.prefilled == 150 + 2 * 20


def test_what_does_not_fit_is_skipped_with_a_note(table: MeasuredFake) -> None:
    notes: list[str] = []
    plan = BenchPlan(prefill=(128, 9999), contexts=(128, 500), batches=(8, 99))
    report = measure(table, WEIGHT_BYTES, plan, notes.append)
    assert [result.tokens for result in report.prefill] == [128]
    assert [(result.batch, result.context) for result in report.decode] == [(1, 128)]
    assert len(notes) == 4


def test_nothing_fits() -> None:
    table = MeasuredFake(small_limits(context_length=32, num_pages=2))
    report = measure(table, WEIGHT_BYTES, BenchPlan(prefill=(128,), contexts=(128,), batches=(8,)), lambda note: None)
    assert (report.prefill, report.decode, report.ttft_ms, report.bandwidth.achieved_gb_s) == ((), (), 0.0, 0.0)


def test_a_slow_device_is_not_kept_busy_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_RUN_S", 0.02)
    table = MeasuredFake(small_limits(context_length=256, num_pages=64), step_s=0.005)
    measure(table, WEIGHT_BYTES, BenchPlan(prefill=(16,), contexts=(16,), batches=(1,)), print)
    assert len(table.decoded) < 30


def test_default_plan_and_the_room_that_it_needs() -> None:
    plan = BenchPlan()
    assert plan.decode_points() == [(1, 128), (1, 1024), (1, 4096), (8, 128)]
    assert plan.context_needed() == 4096 + bench.DECODE_STEPS
    assert BenchPlan(contexts=(128,), batches=(1, 8)).context_needed() == 8 * (128 + bench.DECODE_STEPS)
    assert BenchPlan(prefill=(5000,)).context_needed() == 5008
