"""Schemas as nodes of a graph: documents, drafts, identifiers, references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urldefrag, urljoin

from ramet.runtime.protocol.errors import InvalidConstraint, UnsupportedConstraint

Json = object
Schema = Mapping[str, Json] | bool

LATEST = 2020

DYNAMIC = ("$dynamicRef", "$recursiveRef")

_DRAFTS = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-05": 4,
    "draft-06": 6,
    "draft-07": 7,
    "draft/2019-09": 2019,
    "draft/2020-12": 2020,
}

_CHILD_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_CHILD_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_CHILD_NODES = (
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
)


def is_index(step: str) -> bool:
    """A step of a JSON pointer that may count items of a list."""
    return step.isascii() and step.isdigit() and len(step) < 10


def escape(name: str) -> str:
    """One token of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def draft_of(schema: Json, default: int) -> int:
    """The draft that ``$schema`` names."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(uri, str):
        for part, draft in _DRAFTS.items():
            if part in uri:
                return draft
    return default


@dataclass(eq=False)
class Resource:
    """A schema with an identifier of its own (or a whole document). ``parent``: the resource that it stands in."""

    uri: str
    root: Json
    pointer: str
    draft: int
    parent: Resource | None = None
    anchors: dict[str, tuple[Json, str]] = field(default_factory=dict)
    dynamic: dict[str, tuple[Json, str]] = field(default_factory=dict)
    recursive: bool = False
    """``$recursiveAnchor: true`` of 2019-09."""


Place = tuple["Node", tuple[str | int, ...]]
"""A node, and the way from it."""


class Node:
    """One schema at one place. ``index`` identifies it; ``scope``: resources entered so far, where that matters."""

    __slots__ = ("_place", "draft", "index", "resource", "schema", "scope")

    def __init__(
        self, index: int, schema: Schema, place: str | Place, resource: Resource, scope: tuple[Resource, ...]
    ) -> None:
        self.index = index
        self.schema = schema
        self._place = place
        self.resource = resource
        self.draft = resource.draft
        self.scope = scope

    @property
    def pointer(self) -> str:
        """JSON pointer: only wanted in errors, so worked out on first use."""
        if not isinstance(self._place, str):
            parent, path = self._place
            steps = (escape(step) if isinstance(step, str) else str(step) for step in path)
            self._place = "/".join((parent.pointer, *steps))
        return self._place

    def at(self, keyword: str) -> str:
        """JSON pointer of a keyword of this schema."""
        return f"{self.pointer}/{escape(keyword)}"


class Graph:
    """All nodes of a document and of the documents given with it. Nodes are interned: same place, same node."""

    def __init__(self, root: Json, documents: Mapping[str, Json] | None = None, *, dynamic: bool | None = None) -> None:
        """``dynamic``: whether the document has ``$dynamicRef`` or ``$recursiveRef``; None: it is looked through."""
        self._nodes: dict[object, Node] = {}
        self._located: dict[tuple[int, str], tuple[Resource, Json, str]] = {}
        self.by_index: list[Node] = []
        self._kept: list[Json] = []
        self._documents = dict(documents or {})
        self._resources: dict[str, Resource] | None = None
        self._dynamic = False
        draft = draft_of(root, LATEST)
        self._root_resource = Resource(urldefrag(_identifier(root, draft) or "")[0], root, "", draft)
        self._by_root: dict[int, Resource] = {id(root): self._root_resource}
        if dynamic is None:
            dynamic = _mentions(root, DYNAMIC)
        if documents or dynamic:
            self._dynamic = True
            self._scan_all()
        self.root = self._node(root, "", self._root_resource, self._enter((), self._root_resource))

    def child(self, node: Node, *path: str | int) -> Node:
        """The schema under ``node`` at ``path`` (keyword, then name or index where there is one)."""
        value: Json = node.schema
        for step in path:
            value = value[step]  # type: ignore[index]
        found = self._nodes.get((id(value), node.scope))
        if found is not None and value.__class__ is dict:
            return found
        return self._node(value, (node, path), node.resource, node.scope)

    def synthetic(self, schema: Schema, near: Node) -> Node:
        """A schema that stands in no document."""
        self._kept.append(schema)
        return self._node(schema, near.pointer, near.resource, near.scope)

    def resolve(self, node: Node, ref: Json, keyword: str = "$ref") -> Node:
        if not isinstance(ref, str):
            raise InvalidConstraint(f"{keyword} at {node.at(keyword)} must be a string")
        known = self._located.get((id(node.resource), ref))
        if known is None:
            known = self._located[id(node.resource), ref] = self._locate(node, ref, keyword)
        resource, value, pointer = known
        return self._node(value, pointer, resource, self._enter(node.scope, resource))

    def resolve_dynamic(self, node: Node, ref: Json) -> Node:
        """``$dynamicRef``: the outermost resource of the scope that has the anchor wins."""
        target = self.resolve(node, ref, "$dynamicRef")
        name = urldefrag(str(ref))[1]
        if name in target.resource.dynamic and target.resource.dynamic[name][0] is target.schema:
            for resource in node.scope:
                if name in resource.dynamic:
                    value, pointer = resource.dynamic[name]
                    return self._node(value, pointer, resource, self._enter(node.scope, resource))
        return target

    def resolve_recursive(self, node: Node) -> Node:
        """``$recursiveRef: "#"`` of 2019-09."""
        target = node.resource
        if target.recursive:
            for resource in node.scope:
                if resource.recursive:
                    target = resource
                    break
        return self._node(target.root, target.pointer, target, self._enter(node.scope, target))

    # ------------------------------------------------------------ nodes

    def _node(self, value: Json, place: str | Place, resource: Resource, scope: tuple[Resource, ...]) -> Node:
        if not isinstance(value, (dict, bool)):
            pointer = Node(-1, True, place, resource, ()).pointer
            raise InvalidConstraint(f"{pointer or 'the document'} must be a schema: an object, true or false")
        if isinstance(value, dict) and ("$id" in value or "id" in value) and value is not resource.root:
            inner = self._own_resource(value, Node(-1, True, place, resource, ()).pointer, resource)
            if inner is not resource:
                resource, scope = inner, self._enter(scope, inner)
        key = (id(value), scope)
        found = self._nodes.get(key)
        if found is None:
            found = Node(len(self.by_index), value, place, resource, scope)
            self._nodes[key] = found
            self.by_index.append(found)
        return found

    def _own_resource(self, value: dict[str, Json], pointer: str, resource: Resource) -> Resource:
        if "$id" not in value and "id" not in value:
            return resource
        uri = _identifier(value, draft_of(value, resource.draft))
        if uri is None:
            return resource
        found = self._by_root.get(id(value))
        if found is None:
            full = urldefrag(urljoin(resource.uri, uri))[0]
            found = Resource(full, value, pointer, draft_of(value, resource.draft), resource)
            self._by_root[id(value)] = found
        return found

    def _enter(self, scope: tuple[Resource, ...], resource: Resource) -> tuple[Resource, ...]:
        if not self._dynamic or resource in scope:
            return scope
        return (*scope, resource)

    # ------------------------------------------------------------ references

    def _locate(self, node: Node, ref: str, keyword: str) -> tuple[Resource, Json, str]:
        base, fragment = ("", ref[1:]) if ref.startswith("#") else urldefrag(ref)
        if not base:
            resource: Resource | None = node.resource
        else:
            self._scan_all()
            assert self._resources is not None
            resource = self._resources.get(urldefrag(urljoin(node.resource.uri, base))[0])
        if resource is None:
            raise UnsupportedConstraint(
                f"{keyword} at {node.at(keyword)} points to {ref!r}, a document that was not given: "
                "pass it in the constraint's option 'documents'",
                keyword=keyword,
                pointer=node.at(keyword),
            )
        if "%" in fragment:
            fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            self._scan_all()
            named = resource.anchors.get(fragment) or resource.dynamic.get(fragment)
            if named is None:
                raise InvalidConstraint(f"{keyword} at {node.at(keyword)}: there is no anchor {fragment!r}")
            return resource, *named
        start: Resource | None = resource
        while start is not None:
            found = self._walk(start, fragment)
            if found is not None:
                return found
            start = start.parent
        raise InvalidConstraint(f"{keyword} at {node.at(keyword)}: {ref!r} points to nothing")

    def _walk(self, resource: Resource, fragment: str) -> tuple[Resource, Json, str] | None:
        value, pointer = resource.root, resource.pointer
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and is_index(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
            pointer = f"{pointer}/{step}"
            if isinstance(value, dict):
                resource = self._own_resource(value, pointer, resource)
        return resource, value, pointer

    def _scan_all(self) -> None:
        """Register every identifier and anchor; only needed where a reference is more than a pointer."""
        if self._resources is not None:
            return
        self._resources = {}
        self._scan(self._root_resource.root, "", self._root_resource)
        for uri, document in self._documents.items():
            own = _identifier(document, draft_of(document, LATEST))
            home = urldefrag(uri)[0]
            resource = Resource(home, document, f"{home}#", draft_of(document, self._root_resource.draft))
            self._by_root[id(document)] = resource
            self._scan(document, resource.pointer, resource)
            if own is not None:
                resource.uri = urldefrag(urljoin(home, own))[0]
                self._resources[resource.uri] = resource

    def _scan(self, value: Json, pointer: str, resource: Resource) -> None:
        assert self._resources is not None
        stack = [(value, pointer, resource)]
        while stack:
            value, pointer, resource = stack.pop()
            if not isinstance(value, dict):
                continue
            resource = self._own_resource(value, pointer, resource) if value is not resource.root else resource
            self._resources.setdefault(resource.uri, resource)
            for keyword, table in (("$anchor", resource.anchors), ("$dynamicAnchor", resource.dynamic)):
                name = value.get(keyword)
                if isinstance(name, str):
                    table[name] = (value, pointer)
            legacy = value.get("id" if resource.draft <= 4 else "$id")
            if isinstance(legacy, str) and legacy.startswith("#") and resource.draft <= 7:
                resource.anchors[legacy[1:]] = (value, pointer)
            if value.get("$recursiveAnchor") is True and value is resource.root:
                resource.recursive = True
            stack.extend((child, place, resource) for child, place in subschemas(value, pointer))


def subschemas(schema: dict[str, Json], pointer: str) -> Iterator[tuple[Json, str]]:
    """The schemas right under a schema, in keywords that hold some, with their pointers."""
    for keyword in _CHILD_MAPS:
        group = schema.get(keyword)
        if isinstance(group, dict):
            for name, child in group.items():
                yield child, f"{pointer}/{escape(keyword)}/{escape(name)}"
    for keyword in _CHILD_LISTS:
        items = schema.get(keyword)
        if isinstance(items, list):
            for index, child in enumerate(items):
                yield child, f"{pointer}/{keyword}/{index}"
    for keyword in _CHILD_NODES:
        child = schema.get(keyword)
        if isinstance(child, dict):
            yield child, f"{pointer}/{keyword}"


def _identifier(schema: Json, draft: int) -> str | None:
    """The schema's own URI, if it has one that makes it a resource."""
    if not isinstance(schema, dict):
        return None
    uri = schema.get("id" if draft <= 4 else "$id")
    if not isinstance(uri, str) or not uri or uri.startswith("#"):
        return None
    if draft <= 7 and "$ref" in schema:
        return None
    return uri


def _mentions(value: Json, keywords: tuple[str, ...]) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if any(keyword in item for keyword in keywords):
                return True
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False
