"""An agent as people write them: a stock SDK, its base URL from the environment, each prompt built on the answer before.

Arguments: openai or anthropic, and the script as JSON: a list of [model, prompt, samples]. Prints each answer as one JSON line. It
knows nothing of sendonce, and gives up at the first exception that its SDK raises.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

CLOCK = "{clock}"


def asker(name: str) -> Callable[[str, str], str]:
    if name == "openai":
        import openai

        chats = openai.OpenAI().chat.completions
        return lambda model, prompt: str(chats.create(model=model, messages=said(prompt)).choices[0].message.content)
    import anthropic

    messages = anthropic.Anthropic().messages
    return lambda model, prompt: str(messages.create(model=model, max_tokens=64, messages=said(prompt)).content[0].text)


def said(prompt: str) -> list:
    return [{"role": "user", "content": prompt}]


def main() -> None:
    name, script = sys.argv[1], json.loads(sys.argv[2])
    ask, before = asker(name), ""
    for model, prompt, samples in script:
        text = f"{before}\n{prompt}".replace(CLOCK, str(time.time_ns()))
        with ThreadPoolExecutor(samples) as pool:
            answers = list(pool.map(partial(ask, model), [text] * samples))
        for answer in answers:
            print(json.dumps(answer), flush=True)
        before = min(answers)  # whatever order they came in


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 - whatever it is, it ends the agent
        sys.exit(f"{type(error).__name__}: {error}")
