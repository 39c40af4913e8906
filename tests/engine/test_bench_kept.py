"""What the measurement of kept conversations asks of a table. The numbers are a machine's affair."""

from pathlib import Path

from engine.bench_kept import context_needed, measure_kept
from engine.fake_table import FakeTable, small_limits
from tests.engine.conftest import ByteVocabulary


class CountedFake(FakeTable):
    """A FakeTable that counts what was computed and moved; its steps are slow enough for others to have a share."""

    def __init__(self) -> None:
        super().__init__(small_limits(context_length=700, num_pages=64), delay=2, step_s=0.002)
        self.num_saved = 0

    def save_pages(self, pages: list[int]) -> None:
        super().save_pages(pages)
        self.num_saved += len(pages)


def test_the_prompt_is_computed_then_restored_from_either_tier(tmp_path: Path) -> None:
    table = CountedFake()
    result = measure_kept(table, ByteVocabulary(), 200, tmp_path)
    assert table.num_loaded == 6 * 13  # three rounds from the disk and three from memory, all pages of the prompt
    assert result.tokens == 200 and result.computed_s > 0 and result.from_disk_s > 0 and result.from_memory_s > 0
    assert result.bytes > 13 * table.limits.page_bytes
    assert result.blocks_written > 0 and table.num_saved > 13
    assert 0 < result.quiet_median_ms <= result.quiet_p99_ms
    assert 0 < result.writing_median_ms <= result.writing_p99_ms


def test_it_needs_room_for_the_answer_too() -> None:
    assert context_needed(200) > 200
