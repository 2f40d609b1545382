"""What the demo asks for: one record type for all packages, and the instruction that explains it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ramet.extraction.prompt import Instruction
from ramet.extraction.verbatim import Verbatim

DOCUMENT_TOKENS = 600
"""Documents are cut there: what a package is for stands at the beginning."""

MAX_TOKENS = 2048
"""More than the longest record can take (every string and list of it is bounded), so that none is ever cut."""

Keyword = Annotated[str, Field(pattern=r"^[a-z]{3,12}( [a-z]{2,7})?$")]


class PackageRecord(BaseModel):
    """One Python package."""

    model_config = ConfigDict(extra="forbid")

    name: Verbatim = Field(max_length=60)
    version: Verbatim = Field(max_length=24)
    purpose: str = Field(min_length=10, max_length=160)
    license: Literal["MIT", "BSD", "Apache-2.0", "PSF-2.0", "MPL-2.0", "ISC", "GPL", "LGPL", "other"]
    category: Literal["web", "data", "machine-learning", "testing", "development", "text", "network", "system", "other"]
    keywords: list[Keyword] = Field(min_length=1, max_length=4)


INSTRUCTION = Instruction(
    system="""\
You read the description of one Python package and fill in one JSON record about it. Every value must come from the \
document itself. The record has six fields, always in this order.

name: the name of the package, copied letter by letter from the line "name" at the top of the document. Keep its \
spelling, its dashes, its underscores, its dots and its capital letters. Do not shorten it and do not add anything.

version: the version number, copied digit by digit from the line "version" of the document. Numbers of Python \
versions or of other packages, which the text may mention further down, are not meant.

purpose: one short sentence of at most 160 characters that says what the package does for the people who use it. The \
line "summary" usually says it best; use its words. Do not write about installation, badges, links or contributors.

license: the family of the license that the document names. Write MIT, BSD, Apache-2.0, PSF-2.0, MPL-2.0, ISC, GPL or \
LGPL. Write BSD for each of its variants, and other if the document names no license or a different one.

category: the kind of work the package is for. web is for servers, clients and frameworks of web sites; data is for \
tables, arrays, files and data formats; machine-learning is for models and training; testing is for tests and checks; \
development is for building, packaging, typing and formatting of code; text is for parsing and rendering of text; \
network is for sockets, protocols and transfers; system is for processes, files, clocks and the operating system. \
Write other if none of these fits.

keywords: one to four lower-case words or short terms, of at most 20 characters each, for which someone would search \
to find this package. Each keyword must be different from the others.

Answer with the JSON record alone, without any comment.""",
    before="",
    after="\n\nFill in the record of this package. Copy its name and its version from the first lines.",
)
