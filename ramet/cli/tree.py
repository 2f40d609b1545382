"""Draw the prefix tree of a running server: what is cached, how often it was used, and who shares what."""

from __future__ import annotations

import argparse
import json
import shutil
from typing import Any
from urllib.parse import quote

from ramet.cli.options import positive
from ramet.cli.remote import add_server_options, fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_options(parser)
    parser.add_argument("--depth", type=positive, default=6, metavar="N", help="levels to draw (6)")
    parser.add_argument("--children", type=positive, default=8, metavar="N", help="children of a node to draw (8)")
    parser.add_argument("--salt", default="", metavar="SALT", help="what was asked with this cache_salt")
    parser.add_argument("--json", action="store_true", help="print the nodes as JSON")


def run(arguments: argparse.Namespace) -> int:
    found = fetch(arguments, f"/tree?cache_salt={quote(arguments.salt)}")
    if arguments.json:
        print(json.dumps(found))
        return 0
    width = shutil.get_terminal_size((120, 24)).columns
    for part in found["namespaces"]:
        name = "/".join(str(value) for value in part["namespace"].values() if value) or "(default)"
        print(f"{name}: {len(part['nodes'])} nodes, {sum(node['blocks'] for node in part['nodes'])} blocks")
        for line in draw(part["nodes"], arguments.depth, arguments.children):
            print(line if len(line) <= width else line[: width - 3] + "...")
    if not found["namespaces"]:
        print("nothing is cached")
    return 0


def draw(nodes: list[dict[str, Any]], depth: int, children: int) -> list[str]:
    """One line per node, below its parent; the most used first. nodes: parents before their children."""
    below: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        below.setdefault(node["parent"], []).append(index)
    lines: list[str] = []

    def descend(parent: int, indent: str, level: int) -> None:
        found = sorted(below.get(parent, ()), key=lambda index: (-nodes[index]["hits"], index))
        shown = found[:children] if level < depth else []
        for index in shown:
            last = index == found[-1]
            node = nodes[index]
            locked = ", in use" if node["locked"] else ""
            text = " ".join(node["text"].split())
            lines.append(
                f"{indent}{'└── ' if last else '├── '}{node['blocks']} blocks, {node['hits']} hits{locked}: {text!r}"
            )
            descend(index, indent + ("    " if last else "│   "), level + 1)
        if len(found) > len(shown):
            lines.append(f"{indent}└── {len(found) - len(shown)} more")

    descend(-1, "", 0)
    return lines
