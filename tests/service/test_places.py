"""A request that is ready has its place: (1) one that never runs gives it back; (2) the places of a group are taken
together or not at all; (3) front ends that share a board never take more than the limit."""

import pytest

from tests.service.test_generate_service import body, prepare, service
from tests.support.scripted_engine import ScriptedEngine
from tokenwire.errors import OverloadedError
from tokenwire.server.board import Board, SharedAdmission
from tokenwire.service.admission import Admission


def test_a_place_that_is_dropped_is_free():
    admission = Admission(2, None)
    tickets = admission.enter_all([(1, 5), (1, 7)])
    assert (admission.num_seqs, admission.num_prefill_tokens) == (2, 12)
    tickets[0].leave()
    del tickets
    assert (admission.num_seqs, admission.num_prefill_tokens) == (0, 0)


def test_front_ends_take_places_together_or_not_at_all():
    board = Board.create(2)
    here, there = (SharedAdmission(4, 100, board, row) for row in (0, 1))
    held = here.enter_all([(2, 60), (1, 60)])  # tokens that wait are what counts, not those that come
    for _ in range(3):
        with pytest.raises(OverloadedError, match="holds 3 sequences"):
            there.enter_all([(1, 1), (1, 1)])
    with pytest.raises(OverloadedError, match="120 prompt tokens wait"):
        there.check(1)
    for ticket in held:
        ticket.prefilled()
    more = there.enter_all([(1, 1)])
    with pytest.raises(OverloadedError, match="holds 4 sequences"):
        here.check(1)
    del held, more, ticket
    assert (here.num_seqs, there.num_seqs, here.num_prefill_tokens, there.num_prefill_tokens) == (0, 0, 0, 0)


async def test_a_request_that_never_runs_gives_its_place_back():
    svc = service(ScriptedEngine(), max_num_queued_reqs=1)
    for begin in (svc.stream, svc.encoded_stream, lambda prepared: None):
        prepared = await prepare(svc, body())
        assert svc.admission.num_seqs == 1
        with pytest.raises(OverloadedError):
            await prepare(svc, body())
        stream = begin(prepared)
        if stream is not None:
            await stream.aclose()
        del prepared, stream
        assert svc.admission.num_seqs == 0
