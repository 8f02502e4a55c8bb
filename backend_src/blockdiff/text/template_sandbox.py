"""The Jinja environment of chat templates: what they may call, and where a rendering is measured.

Knows how templates are compiled; knows nothing of messages.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import jinja2.sandbox
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from blockdiff.text import template_limits as limits
from blockdiff.text.template_limits import budget_of, measure, size_of_copy

Function = Callable[..., Any]
# Filters that no template can spell.
STEP, CONCATENATE, COPIED = "step!", "concatenate!", "copied!"
# They make much of little, and no chat needs them.
REFUSED_FILTERS = (
    *("batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "urlize"),
    *("wordcount", "wordwrap", "xmlattr"),
)


def _size_of_escape(text: Any) -> int:
    return 6 * measure(text)


def _size_of_format(pattern: Any, *values: Any, **named: Any) -> int:
    return limits.size_of_format(pattern, [*values, *named.values()])


_FILTER_SIZES: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode"), _size_of_escape),
    **dict.fromkeys(("capitalize", "lower", "title", "trim", "truncate", "upper"), size_of_copy),
    **dict.fromkeys(("dictsort", "groupby", "reverse", "sort", "unique"), size_of_copy),
    "format": _size_of_format,
    "indent": lambda text, width=4, *_, **__: limits.size_of_indent(text, width),
    "join": lambda parts, separator="", *_, **__: limits.size_of_join(parts, separator),
    "list": limits.size_of_list,
    "replace": lambda text, old, new, *_, **__: limits.size_of_replace(text, old, new),
    "string": measure,
    "sum": lambda parts, *_, **__: measure(parts),
    "tojson": lambda value, indent=None, **__: limits.size_of_json(value, indent),
}
_METHOD_SIZES: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("split", "rsplit", "splitlines"), limits.size_of_parts),
    "format": _size_of_format,
    "join": lambda separator, parts: limits.size_of_join(parts, separator),
    "replace": lambda text, old, new, *_: limits.size_of_replace(text, old, new),
}
_BUILTINS = (str, bytes, int, float, list, tuple, Mapping)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Sandbox whose renderings need a ``Budget`` in their context."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self, to_json: Function) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=_shown,
        )
        self.filters["tojson"] = to_json
        for name in REFUSED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        for name, size in _FILTER_SIZES.items():
            self.filters[name] = _limited(self.filters[name], size)
        self.filters |= {STEP: _step, CONCATENATE: _concatenate, COPIED: _copied}

    def build(self, source: str) -> jinja2.Template:
        """The template; raises jinja2.TemplateSyntaxError."""
        tree = _Measured().visit(self.parse(source))
        tree.set_environment(self)
        code = self.compile(tree, filename="chat_template.jinja")
        return self.template_class.from_code(self, code, self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.check_numbers(operator, left, right)
        budget_of(context).make(limits.size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, target: Any, *values: Any, **named: Any) -> Any:
        owner = getattr(getattr(target, "__wrapped__", target), "__self__", None)
        if isinstance(owner, _BUILTINS):
            name = target.__name__
            if name not in limits.METHODS:
                raise jinja2.sandbox.SecurityError(f"{type(owner).__name__}.{name} is not allowed")
            if name in limits.MAKING_METHODS:
                values = _listed(values)
                # Jinja hands on variables of its own with underscores.
                own = {key: value for key, value in named.items() if not key.startswith("_")}
                size = _METHOD_SIZES.get(name, size_of_copy)(owner, *values, **own)
                budget_of(context).make(size)
        made = super().call(context, target, *values, **named)
        if isinstance(made, str):
            budget_of(context).make(len(made))
        return made


class _Measured(NodeTransformer):
    """Puts a step into every loop and macro, and measures what syntax alone makes."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_filtered(nodes.Const(True), STEP), node.test)
        node.body.insert(0, _statement())
        return node.set_lineno(node.lineno)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _statement())
        return node.set_lineno(node.lineno)

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), CONCATENATE).set_lineno(node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        return _filtered(node, COPIED).set_lineno(node.lineno)


def _filtered(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


def _statement() -> nodes.ExprStmt:
    return nodes.ExprStmt(_filtered(nodes.Const(True), STEP))


# Filters that ask for the context are never evaluated while a template is compiled.
@jinja2.pass_context
def _step(context: Context, value: Any) -> Any:
    budget_of(context).step()
    return value


@jinja2.pass_context
def _concatenate(context: Context, parts: list[Any]) -> str:
    budget_of(context).make(measure(parts))
    return "".join(map(str, parts))


@jinja2.pass_context
def _copied(context: Context, value: Any) -> Any:
    budget_of(context).make(size_of_copy(value))
    return value


@jinja2.pass_context
def _shown(context: Context, value: Any) -> Any:
    budget_of(context).make(measure(value))
    return value


def _limited(function: Function, size: Callable[..., int]) -> Function:
    """The filter ``function``, run only if the ``size`` of what it makes is allowed."""
    wanted = getattr(function, "jinja_pass_arg", None)
    first: dict[str, Callable[[Context], Any]] = {
        "context": lambda context: context,
        "eval_context": lambda context: context.eval_ctx,
        "environment": lambda context: context.environment,
    }
    before = [] if wanted is None else [first[wanted.name]]

    @jinja2.pass_context
    def run(context: Context, *values: Any, **named: Any) -> Any:
        values = _listed(values)
        budget_of(context).make(size(*values, **named))
        return function(*(find(context) for find in before), *values, **named)

    return run


def _listed(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """``values`` with lists for what could be walked through only once."""
    return tuple(list(v) if hasattr(v, "__next__") else v for v in values)
