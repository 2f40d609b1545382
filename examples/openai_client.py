"""The official client against ``ramet serve``: chat, a stream, and a typed reply.

ramet serve &
python examples/openai_client.py [BASE_URL]
"""

from __future__ import annotations

import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class Review(BaseModel):
    sentiment: Literal["good", "bad"]
    stars: Literal[1, 2, 3, 4, 5]


def main(base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]

    reply = client.chat.completions.create(model="default", messages=question, temperature=0, max_tokens=40)
    print(reply.choices[0].message.content)

    for chunk in client.chat.completions.create(
        model="default", messages=question, temperature=0, max_tokens=40, stream=True
    ):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    review = client.chat.completions.parse(
        model="default",
        messages=[{"role": "user", "content": "Judge this review: 'Lovely food, friendly staff, we come again!'"}],
        response_format=Review,
        temperature=0,
    )
    print(review.choices[0].message.parsed)
    print("from the cache:", review.usage.prompt_tokens_details.cached_tokens, "of", review.usage.prompt_tokens)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1")
