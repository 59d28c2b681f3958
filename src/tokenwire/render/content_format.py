"""Does a template want message content as one string, or as a list of parts?

Read off its syntax tree, by the rule vLLM applies for `--chat-template-content-format auto`: a template that loops
over a message's content wants parts. Content is reached as `message.content` inside a loop over the messages, under
the bare name `content`, or as a macro's parameter that is given it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    return "openai" if any(_content_loops(tree)) else "string"


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _message_names(tree)
    in_macros: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = _parameters_given_content(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.setdefault(id(loop), set()).update(given)
    for loop in tree.find_all(nodes.For):
        if _is_content(loop.iter, messages):
            yield loop
        elif isinstance(loop.iter, nodes.Name):
            allowed = in_macros.get(id(loop), {"content"})
            if loop.iter.name in allowed:
                yield loop


def _message_names(tree: nodes.Template) -> set[str]:
    """Targets of loops over `messages`, or over what was assigned from it."""
    lists = {"messages"}
    while True:
        more = {
            node.target.name
            for node in tree.find_all(nodes.Assign)
            if isinstance(node.target, nodes.Name) and any(_refers(node.node, name) for name in lists)
        }
        if more <= lists:
            break
        lists |= more
    return {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_refers(loop.iter, name) for name in lists)
    }


def _parameters_given_content(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    names = [argument.name for argument in macro.args]
    given: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given.update(name for name, value in zip(names, call.args, strict=False) if _is_content(value, messages))
        given.update(
            keyword.key for keyword in call.kwargs if keyword.key in names and _is_content(keyword.value, messages)
        )
    return given


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    return any(_refers(node, name, "content") for name in messages)


def _refers(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Is `node` the variable `name` (its item `key`), through filters, tests and slices?"""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _refers(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _refers(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _refers(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _refers(node.node, name)
