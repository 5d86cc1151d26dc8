"""Turns: so many at once, first come, first served, and a queue that says when it is full."""

import asyncio

import pytest

from proxy.outbound import Turns


async def test_calls_take_turns_in_the_order_they_came() -> None:
    """Two at once; the third waits and knows it."""
    turns, let_go, order = Turns(2, 10), asyncio.Event(), []

    async def call(number: int) -> None:
        async with turns.turn() as waited:
            order.append((number, waited))
            await let_go.wait()

    tasks = [asyncio.create_task(call(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert order == [(0, False), (1, False)]
    let_go.set()
    await asyncio.gather(*tasks)
    assert order == [(0, False), (1, False), (2, True), (3, True)]


async def test_queue_is_full_when_as_many_wait_as_may() -> None:
    """One is sent, one waits: the next is better refused."""
    turns, let_go = Turns(1, 1), asyncio.Event()

    async def call() -> None:
        async with turns.turn():
            await let_go.wait()

    assert not turns.is_full
    first = asyncio.create_task(call())
    await asyncio.sleep(0)
    assert not turns.is_full
    second = asyncio.create_task(call())
    await asyncio.sleep(0)
    assert turns.is_full
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not turns.is_full
    let_go.set()
    await first


async def test_upstream_without_a_limit_never_waits() -> None:
    """And is never full."""
    turns = Turns(None, 1)
    async with turns.turn() as first, turns.turn() as second:
        assert (first, second, turns.is_full) == (False, False, False)
