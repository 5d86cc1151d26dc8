"""Plays the script of an answer on a connection, and tells its generation what becomes of both."""

from collections.abc import Iterator

from synthetic_provider.client import Client
from synthetic_provider.generation import Generation
from synthetic_provider.outcomes import Begins, Ends, Made
from synthetic_provider.script import End, Step, Until, Wait


async def play(steps: Iterator[Step], client: Client, generation: Generation | None) -> bool:
    """True while the connection can carry another request.

    Once the client is gone, a generation that goes on hears the rest of its marks, without the pauses, which only a
    background response keeps; any other is aborted there and then.
    """
    left = False
    for step in steps:
        match step:
            case End():
                if step is End.RESET and not left:
                    await client.reset()
                return step is End.KEEP and not left
            case Begins() | Made() | Ends():
                if generation is not None:
                    generation.hear(step)
            case _:
                left = await _left(step, client, generation, left=left)
        if not _goes_on(generation, left=left):
            return False
    raise AssertionError("a script ends with an End")


def _goes_on(generation: Generation | None, *, left: bool) -> bool:
    if generation is None:
        return not left
    if left and not generation.goes_on:
        generation.abort()
        return False
    generation.left = generation.left or left
    return not (generation.cancelled and generation.streamed)


async def _left(step: bytes | Wait | Until, client: Client, generation: Generation | None, *, left: bool) -> bool:
    """Whether the client is gone after this step."""
    if isinstance(step, Wait) and generation is not None and generation.background:
        await generation.pause(step.seconds)
        return left or client.is_gone
    if left:
        return True
    match step:
        case bytes():
            return not await client.send(step)
        case Wait(seconds):
            return not await client.pause(seconds)
        case Until(reached):
            return not await client.stays_until(reached())
