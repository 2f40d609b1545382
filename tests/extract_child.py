"""A job over 500 short documents, in a process of its own: ``extract_child.py OUTPUT``."""

from __future__ import annotations

import sys
from pathlib import Path

import ramet as rt
from ramet.extraction.prompt import Instruction

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["fruit", "animal", "tool"]}, "long": {"type": "boolean"}},
    "required": ["kind", "long"],
}
WORDS = ("apple", "horse", "hammer", "pear", "mouse", "saw", "plum")
DOCUMENTS = [{"id": f"d{number}", "text": f"{WORDS[number % 7]} {number}"} for number in range(500)]
INSTRUCTION = Instruction("Sort the word.", before="", after="")


def main(output: Path) -> None:
    job = rt.extract(SCHEMA, DOCUMENTS, prompt=INSTRUCTION, output=output, max_tokens=32)
    for record in job:
        print(record.id, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
