"""Turns: so many at once, first come, first served; nobody waits for somebody who has gone."""

import asyncio

from proxy.outbound import Turns, TurnsClosedError


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


async def test_place_that_is_given_up_goes_to_the_next() -> None:
    """A waiter that is cancelled, before its turn or in the moment it gets it, keeps nobody else waiting."""
    turns, let_go, order = Turns(1, 10), asyncio.Event(), []

    async def call(number: int) -> None:
        async with turns.turn():
            order.append(number)
            await let_go.wait()
        if number == 0:
            tasks[2].cancel()  # it was given the turn just now

    tasks = [asyncio.create_task(call(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    let_go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 3]
    async with turns.turn() as waited:
        assert not waited


async def test_who_waits_at_a_stop_is_told() -> None:
    """What is sent goes on; what is not, never will be."""
    turns, let_go = Turns(1, 10), asyncio.Event()

    async def call() -> None:
        async with turns.turn():
            await let_go.wait()

    tasks = [asyncio.create_task(call()) for _ in range(3)]
    await asyncio.sleep(0)
    turns.close()
    let_go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), TurnsClosedError, TurnsClosedError]


async def test_upstream_without_a_limit_never_waits() -> None:
    """And has no limit."""
    turns = Turns(None, 1)
    async with turns.turn() as first, turns.turn() as second:
        assert (first, second, turns.limit) == (False, False, None)
