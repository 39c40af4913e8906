"""Logits of a whole sequence: the chunks, their order and what is refused."""

import numpy as np
import numpy.typing as npt
import pytest

from engine.errors import ContextTooLong, InvalidParameter
from engine.fake_table import FakeTable, small_limits
from engine.function_table import Row, Sample
from engine.request import GREEDY
from engine.scoring import score


class ScoringFake(FakeTable):
    """A FakeTable whose logits are 1 at the row's token and -1 at its position. It insists on samples, so it draws."""

    rows: list[Row]

    def embed(self, rows: list[Row]) -> None:
        super().embed(rows)
        self.rows = rows

    def logits(self, rows: range) -> None:
        super().logits(rows)
        self.sample([Sample(row, self.rows[row].slot, self.rows[row].position + 1, GREEDY) for row in rows])

    def read_logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        assert num_rows == len(self.rows) <= self.limits.max_samples
        logits = np.zeros((num_rows, self.limits.vocab_size), dtype=np.float32)
        for index, row in enumerate(self.rows):
            logits[index, row.token] = 1
            logits[index, row.position] = -1
        return logits


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 100])
def test_one_row_per_token_in_order(num_tokens: int) -> None:
    tokens = [200 + index % 64 for index in range(num_tokens)]
    table = ScoringFake(small_limits(max_samples=8))
    logits = score(table, tokens)
    assert (logits.dtype, logits.shape) == (np.float32, (num_tokens, table.limits.vocab_size))
    assert logits.argmax(axis=1).tolist() == tokens
    assert logits.argmin(axis=1).tolist() == list(range(num_tokens))
    assert table.in_flight == 0


def test_what_cannot_be_scored_is_refused() -> None:
    table = ScoringFake(small_limits(context_length=64))
    with pytest.raises(InvalidParameter, match="no tokens"):
        score(table, [])
    with pytest.raises(InvalidParameter, match="300"):
        score(table, [1, 300])
    with pytest.raises(ContextTooLong, match=r"65 tokens .* 64"):
        score(table, [1] * 65)
    assert table.last_submitted == 0
