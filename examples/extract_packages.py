"""One JSON record of each Python package that is installed here, all under one schema and one system prompt.

The same job as ``ramet demo``, as a program: documents in, typed records out. The instruction and the schema are the
same for all documents, so the instruction's 400 tokens are computed once.

    python examples/extract_packages.py [NUMBER]
"""

from __future__ import annotations

import sys

import ramet as rt
from ramet.demo.packages import installed, normalised
from ramet.demo.record import DOCUMENT_TOKENS, INSTRUCTION, MAX_TOKENS, PackageRecord


def main(number: int) -> int:
    packages = installed(number)
    job = rt.extract(
        PackageRecord,
        [package.document for package in packages],
        prompt=INSTRUCTION,
        max_tokens=MAX_TOKENS,
        document_tokens=DOCUMENT_TOKENS,
    )
    names = 0
    for package, record in zip(packages, job, strict=True):
        if record.value is None:
            print(f"{package.name}: {record.status}: {record.error}")
            continue
        found = PackageRecord.model_validate(record.value)
        names += normalised(found.name) == normalised(package.name)
        print(f"{found.name} {found.version} ({found.license}): {found.purpose}")
    print(job.totals.closing_line(job.seconds, names=names))
    return 0 if job.totals.valid == job.totals.records else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
