"""Budgets of thinking where canvases begin as random tokens and change as a whole.

Run: pytest tests/golden
"""

from collections.abc import Sequence
from dataclasses import replace

from blockdiff.core import BlockResult, Request, SamplingParams, Thinking
from tests.engine.fakes import ids

from .canvas_decoder import BLOCK, generate, model, request


class Codec:
    """Token n is character 256 + n."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(256 + token) for token in ids)


def thinking(budget: int, end: int, start: int | None = None) -> Thinking:
    spell = Codec().decode
    begin = spell([126]) if start is None else spell([start])
    return Thinking(budget, (end,), start is None, begin, spell([end]))


def answer(wanted: Request) -> list[BlockResult]:
    return generate([wanted], codec=Codec())[wanted.uid]


def test_the_end_is_given_at_its_place() -> None:
    free = ids(answer(request()))
    never = next(token for token in range(1, 126) if token not in free)
    for budget in (0, 1, 3, BLOCK - 1, BLOCK, BLOCK + 3):
        blocks = answer(request(thinking=thinking(budget, never)))
        tokens = ids(blocks)
        assert (
            tokens.index(never) == budget
            and tokens[: budget // BLOCK * BLOCK] == free[: budget // BLOCK * BLOCK]
        )
        log_probs = [value for block in blocks for value in block.log_probs]
        assert log_probs[budget] == 0 and sum(value < 0 for value in log_probs) == len(tokens) - 1
    assert ids(answer(request(thinking=thinking(64, never)))) == free


def test_a_block_that_the_answer_begins_is_closed() -> None:
    free = ids(answer(request()))
    never = next(token for token in range(1, 126) if token not in free)
    own = thinking(2, never, start=free[0])
    blocks = answer(request(thinking=own))
    # what was decided before the end stays; the canvas is denoised again behind it
    assert ids(blocks)[:4] == [*free[:3], never]
    assert all(value < 0 for value in blocks[0].log_probs[:3])
    forwards = blocks[-1].forwards
    assert forwards is not None
    assert forwards.preview == sum(block.denoise_steps for block in blocks)


def test_an_end_of_the_models_own_leaves_no_other_one() -> None:
    # A model that says nothing else, so that it ends its block at place 0.
    always, given = 5, 9
    own = Thinking(BLOCK - 1, (given,), True, Codec().decode([126]), Codec().decode([always]))
    sampling = SamplingParams(seed=7, logit_bias=((always, 60.0),))
    blocks = answer(request(thinking=own, sampling=sampling))
    assert set(ids(blocks)) == {always}
    forwards = blocks[-1].forwards
    assert forwards is not None
    # The first canvas was denoised twice.
    assert blocks[0].denoise_steps > blocks[1].denoise_steps
    assert forwards.preview == sum(block.denoise_steps for block in blocks)


def test_batches_and_suspensions_change_nothing() -> None:
    free = ids(answer(request()))
    wanted = []
    for uid, budget in enumerate((0, 2, 5, 9, 12)):
        own = thinking(budget, free[3], start=free[0] if uid % 2 else None)
        wanted.append(replace(request(uid), thinking=own))
    alone = {one.uid: ids(answer(one)) for one in wanted}
    memory = 4 * model().cache_sizes(16, 128).page_bytes
    for settings in ({"slots": 5}, {"slots": 3, "kv_cache_bytes": memory}):
        blocks = generate(wanted, codec=Codec(), **settings)
        assert {uid: ids(own) for uid, own in blocks.items()} == alone
